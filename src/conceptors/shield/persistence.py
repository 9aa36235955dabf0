"""The methods of `Shield` that save and load its state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from conceptors.shield import state as shield_state
from conceptors.shield.attach import outside_inference_mode
from conceptors.shield.state import LoadReport


class Persistence:
    """The part of `Shield` that saves and loads its state."""

    def state_dict(self: Any) -> dict[str, Any]:
        """Return all remembered tasks as plain dictionaries, tensors and numbers.

        Save the model's weights at the same time, because loading the state trusts the weights of
        that moment. For a sharded model, all processes call this together. The state is complete
        on each process, and any number of processes can load it.
        """
        self._guards.settle()
        if self._attached:
            self._watch.look()
        self._guards.doubt()
        return shield_state.pack(self)

    @outside_inference_mode()
    def load_state_dict(
        self: Any,
        state: Mapping[str, Any],
        *,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
    ) -> LoadReport:
        """Load the tasks of another shield, on any device and in any dtype.

        Load the model's weights first. If the state is invalid, nothing changes. All processes of
        a sharded model call this together.

        Args:
            state: the result of `state_dict`.
            strict: whether all layers of the state and the model must match. If not, layers that
                match are loaded.
            rename: a mapping from layer names in the state to layer names in the model.

        Returns:
            A `LoadReport` with the layers that were loaded, missing, unexpected, or mismatched.

        Raises:
            ValueError: the state is damaged, fits no layer, or, with `strict`, does not fit all.
        """
        with self._watch.alone():
            self._guards.abandon()
            self.refresh()
            loaded = shield_state.read(self, state, strict=strict, rename=rename or {})
            with self._all_or_nothing():
                self._remembered = loaded.remembered
                self._anchors.values = self._anchors.values | loaded.anchors
                self._claims_changed()
            self._watch.resting.names = loaded.resting
            self._watch.distrust()
        report: LoadReport = loaded.report
        return report

    def save(self: Any, path: str | Path) -> None:
        """Save the state as a safetensors file. The file is replaced only when it is complete."""
        shield_state.save(self.state_dict(), path)

    def load(
        self: Any,
        path: str | Path,
        *,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
    ) -> LoadReport:
        """Load a file from `save`; for arguments, result and errors see `load_state_dict`."""
        return shield_state.load_into(self, path, strict=strict, rename=rename)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Shield cannot be copied or pickled, because it belongs to one model and its "
            "optimizers; save shield.state_dict(), and load it into Shield(other_model)"
        )
