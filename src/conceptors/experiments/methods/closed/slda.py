"""Streaming linear discriminant analysis (Hayes & Kanan 2020).

"Lifelong machine learning with deep streaming linear discriminant analysis", CVPR workshops: a
running mean of every class, and one covariance Σ around them that all classes share. The paper
adds samples one by one; sums give the same within-class covariance in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from conceptors.experiments.methods.closed.base import ClosedSettings, LinearScores
from conceptors.experiments.methods.settings import setting


@dataclass(frozen=True)
class SldaSettings(ClosedSettings):
    shrinkage: float = setting(1e-4, "ε of (1 - ε) Σ + ε I, between 0 and 1")


class Slda(LinearScores):
    """Scores Λ μ · h - ½ μᵀ Λ μ with Λ = ((1 - ε) Σ + ε I)⁻¹: Gaussian classes, equally likely."""

    name = "slda"
    about = "streaming linear discriminant analysis (Hayes & Kanan 2020)"
    settings_type = SldaSettings

    def end_task(self, number: int) -> None:
        sums, shrinkage = self.sums, self.settings.shrinkage
        means = sums.cross / sums.counts.clamp_min(1)[:, None]
        covariance = (sums.gram - means.mT @ sums.cross) * ((1 - shrinkage) / sums.counts.sum())
        covariance.diagonal().add_(shrinkage)
        factor, info = torch.linalg.cholesky_ex(covariance)
        if int(info):
            raise ValueError(
                f"shrinkage {shrinkage:g} is too small to invert the covariance of "
                f"{len(factor)} features; raise it"
            )
        self.weights = torch.cholesky_solve(means.mT, factor).mT
        self.biases = -0.5 * (self.weights * means).sum(1)
