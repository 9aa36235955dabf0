"""The share of the gradients that is applied, <G, G F> / <G, G>, by layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_DECAY = 0.5  # weight of earlier measurements
_RELIABLE = 128  # steps after which a warning may be issued
_INTERVAL = 1024  # the most steps between measurements, which double until then


class Passing:
    """Running means of <G, G F> and <G, G>, which do not wait for the device.

    Their ratio compares the decrease of the loss by a small SGD step with and without the shield.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._means: dict[str, Tensor] = {}  # [2]

    def is_due(self) -> bool:
        """Count a step, and return whether to measure it."""
        due = self.is_next_due()
        self.steps += 1
        return due

    def is_next_due(self) -> bool:
        """Whether to measure the next step."""
        step = self.steps + 1
        return (step & (step - 1) == 0 or step % _INTERVAL == 0) and not is_capturing()

    def is_reliable_now(self) -> bool:
        """Whether the shares have just become reliable; true for one step."""
        return self.steps == _RELIABLE

    def add(self, name: str, products: Tensor) -> None:
        """Add `Strategy.passing` of a layer's gradients."""
        mean = self._means.get(name)
        self._means[name] = products if mean is None else products.lerp(mean.to(products), _DECAY)

    def shares(self) -> dict[str, float]:
        """Return the share of each measured layer, in [0, 1]; none where gradients were NaN."""
        means = {name: mean.tolist() for name, mean in self._means.items()}
        return {
            name: min(1.0, max(0.0, free / total))
            for name, (free, total) in means.items()
            if total > 0 and math.isfinite(free / total)
        }


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured, when nothing may wait for the device."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
