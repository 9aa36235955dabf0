"""Scores that are linear in features: NCM, SLDA, KLDA, ACIL and RanPAC."""

import math
from typing import Any

import torch
from torch import Tensor

from conceptors import RandomFeatures
from conceptors.experiments.methods.base import only
from conceptors.experiments.methods.closed import ClosedForm, LiftSettings
from conceptors.readout import Sums

_SHRINKAGE = 1e-4  # ε of SLDA
GAMMA = 0.1  # ridge of ACIL
RIDGES = [10.0**k for k in range(-8, 9)]  # of RanPAC


class LinearScores(ClosedForm):
    """Scores that are linear in features h, solved from their sums after each task."""

    weights: Tensor  # [classes, d]
    biases: Tensor | float = 0.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sums = self.new_sums()

    def new_sums(self) -> Sums:
        width = getattr(self.settings, "lift", self.width)
        return Sums(int(width), self.classes, self.device)

    def lifted(self, rows: Tensor) -> Tensor:
        """Features h `[n, d]` of rows `[n, width]`."""
        return rows

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.sums.add(self.lifted(rows), labels)

    def outputs(self, x: Tensor, number: int) -> Tensor:
        scores = self.lifted(self.model(x)).double() @ self.weights.mT + self.biases
        return only(scores, self.sums.squares > 0, -torch.inf)  # squares of labels are counts


class Ncm(LinearScores):
    """Scores 2 μ · h - |μ|², which are -|h - μ|² but for |h|², the same for all classes."""

    name = "ncm"
    about = "nearest class mean"

    def lifted(self, rows: Tensor) -> Tensor:
        return rows.double()

    def end_task(self, number: int) -> None:
        means = class_means(self.sums)
        self.weights, self.biases = 2 * means, -means.square().sum(1)


class Slda(LinearScores):
    """Scores Λ μ · h - ½ μᵀ Λ μ with Λ = ((1 - ε) Σ + ε I)⁻¹, from the covariance Σ around means.

    The paper adds samples one by one; sums give the same covariance in any order.
    """

    name = "slda"
    about = "streaming linear discriminant analysis (Hayes & Kanan 2020)"

    def end_task(self, number: int) -> None:
        sums = self.sums
        means = class_means(sums)
        covariance = (sums.gram - means.mT @ sums.cross) * ((1 - _SHRINKAGE) / sums.count)
        covariance.diagonal().add_(_SHRINKAGE)
        self.weights = torch.cholesky_solve(means.mT, torch.linalg.cholesky(covariance)).mT
        self.biases = -0.5 * (self.weights * means).sum(1)


class Klda(Slda):
    """SLDA on random Fourier features of a Gaussian kernel, whose width is relative to the data."""

    name = "klda"
    about = "kernel linear discriminant analysis (Momeni et al. 2025)"
    settings_type = LiftSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        lift = RandomFeatures(self.width, self.settings.lift, "fourier", shape=0.0, seed=self.seed)
        self.lift = lift.to(self.device)

    def calibrate(self, rows: Tensor) -> None:
        self.lift.calibrate(rows)

    def lifted(self, rows: Tensor) -> Tensor:
        h: Tensor = self.lift(rows)
        return h


def class_means(sums: Sums) -> Tensor:
    """Means μ `[classes, d]`; 0 for classes without samples."""
    return sums.cross / sums.squares.clamp_min(1)[:, None]  # squares of labels are counts


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
