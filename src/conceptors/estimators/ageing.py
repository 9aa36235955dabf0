"""How far sums are out of date: the network that made their features goes on learning."""

from __future__ import annotations

import warnings
from typing import Any

from conceptors._internal.outside import outside


class Ageing:
    """Adds up by how much a shielded network's answers to what it remembers have moved."""

    def __init__(self) -> None:
        self._mark: Any = None
        self._moved: dict[str, float] = {}

    def renew(self, shield: Any) -> None:
        """New sums were made with the network as it is now."""
        if not shield.is_settled:
            warnings.warn(
                "the shield has not remembered what was learned last, so that out_of_date will "
                "leave out how its features move: call shield.remember, then learn_from",
                stacklevel=outside(),
            )
        if self._mark is not None:
            self._moved = self.since(shield)
        self._mark = shield.mark()

    def since(self, shield: Any) -> dict[str, float]:
        """Moves of every layer since sums were first made, one after the other, added up."""
        if self._mark is None:
            raise RuntimeError(
                "nothing was learned with learn_from(..., shield=shield) yet, or not since this "
                "readout was loaded"
            )
        latest: dict[str, float] = shield.moved_since(self._mark)
        return {name: self._moved.get(name, 0.0) + drift for name, drift in latest.items()}
