"""How much of what a task wants to change may be changed: <G, G F> / <G, G>, layer by layer."""

from __future__ import annotations

import torch
from torch import Tensor

_KEPT = 0.5  # of earlier looks
_SURE = 128  # steps before anything is said about them
_OFTEN = 1024  # steps between looks at most; before, they double


class Passing:
    """Running means of <G, G F> and <G, G>, which do not wait for the device.

    Their ratio is that of the decrease of the loss by a small SGD step with the shield to one
    without.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._means: dict[str, Tensor] = {}  # [2]

    def is_due(self) -> bool:
        """Whether to look at this step; counts it."""
        due = self.is_next_due()
        self.steps += 1
        return due

    def is_next_due(self) -> bool:
        """The same of the step to come."""
        step = self.steps + 1
        return (step & (step - 1) == 0 or step % _OFTEN == 0) and not is_capturing()

    def is_sure(self) -> bool:
        """Whether enough was seen for a word about it; true once."""
        return self.steps == _SURE

    def see(self, name: str, found: Tensor) -> None:
        """`Strategy.passing` of a layer's gradients."""
        before = self._means.get(name)
        self._means[name] = found if before is None else found.lerp(before.to(found), _KEPT)

    def shares(self) -> dict[str, float]:
        """What passes of each layer that was seen, in [0, 1]."""
        found = {name: mean.tolist() for name, mean in self._means.items()}
        return {n: min(1.0, max(0.0, left / whole)) for n, (left, whole) in found.items() if whole}


def is_capturing() -> bool:
    """Whether a step is being recorded for replay: nothing may wait for the device."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
