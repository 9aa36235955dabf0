"""Streaming linear discriminant analysis (Hayes & Kanan 2020).

"Lifelong machine learning with deep streaming linear discriminant analysis", CVPR workshops: a
running mean of every class, and one covariance Σ around them that all classes share. The paper
adds samples one by one; sums give the same within-class covariance whatever the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.estimators.sums import Sums
from conceptors.experiments.methods.closed.base import ClosedForm, Head
from conceptors.experiments.methods.closed.settings import ClosedSettings
from conceptors.experiments.methods.settings import OwnSettings, setting


@dataclass(frozen=True)
class SldaSettings(ClosedSettings):
    shrinkage: float = setting(1e-4, "ε of (1 - ε) Σ + ε I, between 0 and 1")

    def check(self) -> None:
        super().check()
        if self.shrinkage > 1:
            raise ValueError(f"shrinkage must be between 0 and 1, got {self.shrinkage}")


def discriminants(sums: Sums, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Weights `[classes, d]` and biases of Gaussian classes with one covariance, equally likely.

    w = Λ μ and b = -½ μᵀ Λ μ with Λ = ((1 - ε) Σ + ε I)⁻¹.
    """
    means = sums.cross / sums.squares.clamp_min(1)[:, None]  # squares of labels are counts
    covariance = (sums.gram - means.mT @ sums.cross).mul_((1 - shrinkage) / sums.count)
    covariance.diagonal().add_(shrinkage)
    factor, info = torch.linalg.cholesky_ex(covariance)
    if int(info):
        raise ValueError(
            f"shrinkage {shrinkage:g} is too small to invert the covariance of {sums.count:g} "
            f"samples with {sums.dim} features; raise it"
        )
    weights = torch.cholesky_solve(means.mT, factor).mT
    return weights, -0.5 * (weights * means).sum(1)


class StreamingLda(Head):
    """Sums of the features' products, and of the features of every class."""

    def __init__(self, scenario: Any, settings: Any, seed: int) -> None:
        super().__init__(scenario, settings, seed)
        self.sums = Sums(self.width, self.classes)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.sums.to(rows.device)
        self.sums.add(rows, labels)

    def finish(self) -> None:
        self.weights, self.biases = discriminants(self.sums, self.settings.shrinkage)

    def scores(self, rows: Tensor) -> Tensor:
        return rows.double() @ self.weights.mT + self.biases

    def kept(self) -> list[Tensor]:
        return list(self.sums.tensors().values())


class Slda(ClosedForm):
    name: ClassVar[str] = "slda"
    about: ClassVar[str] = "streaming linear discriminant analysis (Hayes & Kanan 2020)"
    settings_type: ClassVar[type[OwnSettings]] = SldaSettings
    head: ClassVar[type[Head]] = StreamingLda
