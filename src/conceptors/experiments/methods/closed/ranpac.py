"""RanPAC's head (McDonnell, Gong, Parvaneh, Abbasnejad & van den Hengel 2023).

"RanPAC: random projections and pre-trained models for continual learning", NeurIPS: class
prototypes of random ReLU features, decorrelated by their Gram matrix. Its ridge is the power of ten
that does best on a fifth of the current task when the other four are learned alone.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from conceptors.experiments.methods.closed.acil import RandomRelu, ReluSettings, ridge_weights
from conceptors.experiments.methods.closed.base import Sums

RIDGES = [10.0**k for k in range(-8, 9)]


class Ranpac(RandomRelu):
    name = "ranpac"
    about = "RanPAC's random projection and ridge regression (McDonnell et al. 2023)"
    settings_type = ReluSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.learned, self.held_out = self.new_sums(), self.new_sums()  # of the current task

    def add(self, rows: Tensor, labels: Tensor) -> None:
        h = self.lifted(rows)
        fifth = max(1, len(h) // 5)  # of a part of the task: samples come in random order
        self.held_out.add(h[:fifth], labels[:fifth])
        self.learned.add(h[fifth:], labels[fifth:])

    def end_task(self, number: int) -> None:
        errors = [squared_error(ridge_weights(self.learned, r), self.held_out) for r in RIDGES]
        self.ridge = RIDGES[errors.index(min(errors))]
        for sums in (self.learned, self.held_out):
            self.sums.joint.merge(sums.joint)
        self.learned, self.held_out = self.new_sums(), self.new_sums()
        while (weights := ridge_weights(self.sums, self.ridge)) is None:
            self.ridge *= 10
        self.weights = weights


def squared_error(weights: Tensor | None, sums: Sums) -> float:
    """Σ |y - W h|² over the samples of these sums."""
    if weights is None:
        return math.inf
    fitted = ((weights @ sums.gram) * weights).sum() - 2 * (weights * sums.cross).sum()
    return float(sums.counts.sum() + fitted)
