"""Nearest class mean, and linear discriminant analysis: SLDA and KLDA."""

from typing import Any

import torch
from torch import Tensor

from conceptors import RandomFeatures
from conceptors.experiments.methods.closed import LiftSettings, LinearScores
from conceptors.readout import Sums

_SHRINKAGE = 1e-4  # ε


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
