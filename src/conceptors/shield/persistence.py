"""Saving a shield and loading it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from conceptors.shield import state as shield_state
from conceptors.shield.attach import outside_inference_mode
from conceptors.shield.state import LoadReport


class Persistence:
    """The part of `Shield` that turns it into plain data and back."""

    def state_dict(self: Any) -> dict[str, Any]:
        """Everything remembered, as plain dictionaries, tensors and numbers.

        Warns of weights that moved beside guarded steps: who loads the state trusts those of then.
        Of sharded models it is whole, so that any number of processes can load it: all processes
        have to call this together, and one of them may write it.
        """
        self._guards.settle()
        if self._attached:
            self._watch.look()
        return shield_state.pack(self)

    @outside_inference_mode()
    def load_state_dict(
        self: Any,
        state: Mapping[str, Any],
        *,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
    ) -> LoadReport:
        """Take over what another shield has remembered, on any device and dtype.

        If anything is wrong, nothing changes. All processes of a sharded model call it together.

        Args:
            strict: refuse a state that does not fit in every layer; else load what fits. The
                report names what was loaded, is missing, left over, or of another shape.
            rename: old layer name -> new layer name.

        Raises:
            ValueError: damaged or foreign state, one of which nothing fits, or, with `strict`,
                one that does not fit.
        """
        with self._watch.alone():
            self._guards.abandon()
            self.refresh()
            found = shield_state.read(self, state, strict=strict, rename=rename or {})
            with self._all_or_nothing():
                self._remembered, self._resumed = found.remembered, found.resumed
                self._anchors.values = self._anchors.values | found.anchors
                self._claims_changed()
            self._watch.resting.names = found.resting
            self._watch.distrust()
        report: LoadReport = found.report
        return report

    def save(self: Any, path: str | Path) -> None:
        """Write the state as a safetensors file, whole or not at all."""
        shield_state.save(self.state_dict(), path)

    def load(
        self: Any,
        path: str | Path,
        *,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
    ) -> LoadReport:
        """Read a file that `save` wrote; see `load_state_dict`."""
        return shield_state.load_into(self, path, strict=strict, rename=rename)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Shield belongs to one model and its optimizers and cannot be copied or pickled; "
            "save shield.state_dict(), and load it into Shield(other_model)"
        )
