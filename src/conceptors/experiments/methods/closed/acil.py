"""Analytic class-incremental learning, ACIL (Zhuang, Weng, Wei, Xie, Toh & Lin 2022).

"ACIL: analytic class-incremental learning with absolute memorization and privacy protection",
NeurIPS: ridge regression on random ReLU features. The paper updates (Σ h hᵀ + γ I)⁻¹ and the
weights recursively by Woodbury's identity; solving from the sums gives the same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conceptors.experiments.methods.closed.base import ClosedSettings, LinearScores, Sums
from conceptors.experiments.methods.settings import setting


@dataclass(frozen=True)
class ReluSettings(ClosedSettings):
    lift: int = setting(2000, "random ReLU features")


class RandomRelu(LinearScores):
    """Features h = relu(x W) with normal random W, drawn without any data."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        generator = torch.Generator().manual_seed(self.seed)
        weight = torch.randn(self.width, self.settings.lift, generator=generator)
        self.projection = (weight / self.width**0.5).to(self.device)

    def lifted(self, rows: Tensor) -> Tensor:
        return (rows @ self.projection).relu()


@dataclass(frozen=True)
class AcilSettings(ReluSettings):
    gamma: float = setting(0.1, "γ of the ridge regression")


class Acil(RandomRelu):
    name = "acil"
    about = "analytic class-incremental learning (Zhuang et al. 2022)"
    settings_type = AcilSettings

    def end_task(self, number: int) -> None:
        weights = ridge_weights(self.sums, self.settings.gamma)
        if weights is None:
            raise ValueError(f"gamma {self.settings.gamma:g} is too small to solve; raise it")
        self.weights = weights


def ridge_weights(sums: Sums, ridge: float) -> Tensor | None:
    """Σ y hᵀ (Σ h hᵀ + ridge I)⁻¹ `[classes, d]`; None where rounding makes that impossible."""
    gram = sums.gram.clone()
    gram.diagonal().add_(ridge)
    factor, info = torch.linalg.cholesky_ex(gram)
    return None if int(info) else torch.cholesky_solve(sums.cross.mT, factor).mT
