"""RanPAC's head (McDonnell, Gong, Parvaneh, Abbasnejad & van den Hengel 2023).

"RanPAC: random projections and pre-trained models for continual learning", NeurIPS: class
prototypes of random ReLU features, decorrelated by their Gram matrix. Its ridge is the power of ten
that does best on a fifth of the current task when the other four are learned alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.estimators.sums import Sums
from conceptors.experiments.methods.closed.base import ClosedForm, Head
from conceptors.experiments.methods.closed.features import Projection
from conceptors.experiments.methods.closed.settings import ClosedSettings
from conceptors.experiments.methods.settings import OwnSettings, setting

RIDGES = [10.0**k for k in range(-8, 9)]


@dataclass(frozen=True)
class ProjectionSettings(ClosedSettings):
    lift: int = setting(2000, "random ReLU features")

    def check(self) -> None:
        super().check()
        if self.lift < 1:
            raise ValueError(f"lift must be at least 1, got {self.lift}")


def prototypes(sums: Sums, ridge: float) -> Tensor | None:
    """C (G + ridge I)⁻¹ `[classes, d]`; None where rounding makes that impossible."""
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


class RanpacHead(Head):
    """The Gram matrix and the classes' sums."""

    def __init__(self, scenario: Any, settings: Any, seed: int) -> None:
        super().__init__(scenario, settings, seed)
        self.projection = Projection(self.width, settings.lift, seed)
        self.total = Sums(settings.lift, self.classes)
        self._start()

    def _start(self) -> None:
        self.learned = Sums(self.settings.lift, self.classes, self.total.device)  # of this task
        self.held = Sums(self.settings.lift, self.classes, self.total.device)  # a fifth of it

    def add(self, rows: Tensor, labels: Tensor) -> None:
        rows = self.projection(rows)
        fifth = max(1, len(rows) // 5)  # of a chunk: samples come in random order
        for sums, part in ((self.held, slice(fifth)), (self.learned, slice(fifth, None))):
            sums.to(rows.device)
            sums.add(rows[part], labels[part])

    def finish(self) -> None:
        errors = [squared_error(prototypes(self.learned, r), self.held) for r in RIDGES]
        self.ridge = RIDGES[errors.index(min(errors))]
        self.total.to(self.held.device)
        self.total.include(self.learned)
        self.total.include(self.held)
        self._start()
        found = prototypes(self.total, self.ridge)
        while found is None:
            self.ridge *= 10
            found = prototypes(self.total, self.ridge)
        self.weights = found

    def scores(self, rows: Tensor) -> Tensor:
        found: Tensor = self.projection(rows).double() @ self.weights.mT
        return found

    def kept(self) -> list[Tensor]:
        return list(self.total.tensors().values())


class Ranpac(ClosedForm):
    name: ClassVar[str] = "ranpac"
    about: ClassVar[str] = "RanPAC's random projection and ridge regression (McDonnell et al. 2023)"
    settings_type: ClassVar[type[OwnSettings]] = ProjectionSettings
    head: ClassVar[type[Head]] = RanpacHead
