"""Section 2.2 of the paper on random features: each task's increment by conceptors.

With `solution=joint` and the regularization aperture⁻², the default, that is ridge regression on
all tasks at once, tasks counting equally: what `readout` has, where samples count equally.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.estimators import closed_form
from conceptors.estimators.sums import Sums
from conceptors.experiments.methods.closed.base import ClosedForm, Head
from conceptors.experiments.methods.closed.features import random_features
from conceptors.experiments.methods.closed.settings import LiftSettings
from conceptors.experiments.methods.settings import OwnSettings, setting

_SOLUTIONS = ("joint", "paper", "simplified", "exact")


@dataclass(frozen=True)
class RidgeSettings(LiftSettings):
    aperture: float = setting(10.0, "of the conceptors: larger protects more")
    regularization: float = setting(1e-2, "of the ridge regression; aperture⁻² makes it joint")
    solution: str = setting(
        "joint", "paper: section 2.2 as printed; old names: simplified (joint), exact", _SOLUTIONS
    )

    def check(self) -> None:
        super().check()
        if self.lift < 1:
            raise ValueError(f"lift must be at least 1, got {self.lift}")


class IncrementalRidge(Head):
    """The sum of all tasks' correlations, and the weights."""

    def __init__(self, scenario: Any, settings: Any, seed: int) -> None:
        super().__init__(scenario, settings, seed)
        self.lift = random_features(self.width, scenario, settings, seed)
        size = settings.lift + 1
        self.task = Sums(size, self.classes)
        self.total = torch.zeros(size, size, dtype=torch.float64)
        self.weights = torch.zeros(self.classes, size, dtype=torch.float64)

    def calibrate(self, rows: Tensor) -> None:
        self.lift.calibrate(rows)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.task.to(rows.device)
        self.task.add(self._with_unit(rows), labels)

    def finish(self) -> None:
        s, task = self.settings, self.task
        self.total, self.weights = self.total.to(task.device), self.weights.to(task.device)
        free = closed_form.free_space(self.total, s.aperture)
        printed = s.solution in ("paper", "exact")
        solve = closed_form.increment if printed else closed_form.simplified_increment
        correlation = task.gram / task.count
        cross = task.cross / task.count
        self.weights += solve(correlation, cross, self.weights, free, s.regularization)
        self.total += correlation
        self.task = Sums(task.dim, self.classes, task.device)

    def _with_unit(self, rows: Tensor) -> Tensor:
        h: Tensor = self.lift(rows)
        return torch.cat([h, torch.ones_like(h[:, :1])], 1)

    def scores(self, rows: Tensor) -> Tensor:
        return self._with_unit(rows).double() @ self.weights.mT

    def kept(self) -> list[Tensor]:
        return [self.total, self.weights]


class ConceptorRidgeMethod(ClosedForm):
    name: ClassVar[str] = "conceptor-ridge"
    about: ClassVar[str] = "incremental ridge regression by conceptors on random features"
    settings_type: ClassVar[type[OwnSettings]] = RidgeSettings
    head: ClassVar[type[Head]] = IncrementalRidge
