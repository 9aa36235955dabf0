"""Analytic class-incremental learning, ACIL (Zhuang, Weng, Wei, Xie, Toh & Lin 2022).

"ACIL: analytic class-incremental learning with absolute memorization and privacy protection",
NeurIPS: recursive least squares on random ReLU features. With R = (Σ h hᵀ + γ I)⁻¹ kept instead of
the sum, Woodbury's identity adds a part of a task without solving anything again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.experiments.methods.closed.base import ClosedForm, Head
from conceptors.experiments.methods.closed.features import Projection
from conceptors.experiments.methods.closed.ranpac import ProjectionSettings
from conceptors.experiments.methods.settings import OwnSettings, setting

_ROWS = 1000  # in one update, which solves a system of that size


@dataclass(frozen=True)
class AcilSettings(ProjectionSettings):
    gamma: float = setting(0.1, "γ of the ridge regression")

    def check(self) -> None:
        super().check()
        if self.gamma <= 0:
            raise ValueError(f"gamma must be above 0, got {self.gamma}")


class AcilHead(Head):
    """R `[d, d]` and the weights `[d, classes]`."""

    def __init__(self, scenario: Any, settings: Any, seed: int) -> None:
        super().__init__(scenario, settings, seed)
        self.projection = Projection(self.width, settings.lift, seed)
        self.inverse = torch.eye(settings.lift, dtype=torch.float64) / settings.gamma
        self.weights = torch.zeros(settings.lift, self.classes, dtype=torch.float64)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.inverse, self.weights = self.inverse.to(rows.device), self.weights.to(rows.device)
        for x, y in zip(rows.split(_ROWS), labels.split(_ROWS)):
            h = self.projection(x).double()
            wanted = functional.one_hot(y, self.classes).to(h)
            told = h @ self.inverse  # [n, d]
            inner = told @ h.mT
            inner.diagonal().add_(1.0)
            self.inverse -= told.mT @ torch.cholesky_solve(told, torch.linalg.cholesky(inner))
            self.weights += self.inverse @ (h.mT @ (wanted - h @ self.weights))

    def scores(self, rows: Tensor) -> Tensor:
        found: Tensor = self.projection(rows).double() @ self.weights
        return found

    def kept(self) -> list[Tensor]:
        return [self.inverse, self.weights]


class Acil(ClosedForm):
    name: ClassVar[str] = "acil"
    about: ClassVar[str] = "analytic class-incremental learning (Zhuang et al. 2022)"
    settings_type: ClassVar[type[OwnSettings]] = AcilSettings
    head: ClassVar[type[Head]] = AcilHead
