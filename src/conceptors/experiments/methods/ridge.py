"""Ridge regression on random ReLU features: ACIL and RanPAC."""

import math
from typing import Any

import torch
from torch import Tensor

from conceptors.experiments.methods.closed import LiftSettings, LinearScores
from conceptors.readout import Sums

GAMMA = 0.1  # ridge of ACIL
RIDGES = [10.0**k for k in range(-8, 9)]


class RandomRelu(LinearScores):
    """Features h = relu(x W) with normal random W, drawn without any data."""

    settings_type = LiftSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        generator = torch.Generator().manual_seed(self.seed)
        weight = torch.randn(self.width, self.settings.lift, generator=generator)
        self.projection: Tensor = (weight / self.width**0.5).to(self.device)

    def lifted(self, rows: Tensor) -> Tensor:
        h: Tensor = rows @ self.projection
        return h.relu()


class Acil(RandomRelu):
    """The paper updates (Σ h hᵀ + γ I)⁻¹ recursively; solving from sums gives the same weights."""

    name = "acil"
    about = "analytic class-incremental learning (Zhuang et al. 2022)"

    def end_task(self, number: int) -> None:
        weights = ridge_weights(self.sums, GAMMA)
        if weights is None:
            raise ValueError("acil cannot solve for such large features. Use ranpac or readout")
        self.weights = weights


class Ranpac(RandomRelu):
    """Its ridge is the power of ten that is best for a fifth of the task, after the rest."""

    name = "ranpac"
    about = "RanPAC's random projection and ridge regression (McDonnell et al. 2023)"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.learned, self.held_out = self.new_sums(), self.new_sums()  # of the current task

    def add(self, rows: Tensor, labels: Tensor) -> None:
        h = self.lifted(rows)
        fifth = max(1, len(h) // 5)  # of a part of the task: samples come in random order
        self.held_out.add(h[:fifth], labels[:fifth])
        self.learned.add(h[fifth:], labels[fifth:])

    def end_task(self, number: int) -> None:
        errors = {r: squared_error(ridge_weights(self.learned, r), self.held_out) for r in RIDGES}
        self.ridge = min(errors, key=errors.__getitem__)
        for sums in (self.learned, self.held_out):
            self.sums.include(sums)
        self.learned, self.held_out = self.new_sums(), self.new_sums()
        while (weights := ridge_weights(self.sums, self.ridge)) is None:
            self.ridge *= 10
        self.weights = weights


def ridge_weights(sums: Sums, ridge: float) -> Tensor | None:
    """Σ y hᵀ (Σ h hᵀ + ridge I)⁻¹ `[classes, d]`; None where rounding makes that impossible."""
    gram = sums.gram.clone()
    gram.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(gram)
    return None if int(info) else torch.cholesky_solve(sums.cross.mT, factor).mT


def squared_error(weights: Tensor | None, sums: Sums) -> float:
    """Σ |y - W h|² over the samples of these sums."""
    if weights is None:
        return math.inf
    fitted = ((weights @ sums.gram) * weights).sum() - 2 * (weights * sums.cross).sum()
    return float(sums.squares.sum() + fitted)
