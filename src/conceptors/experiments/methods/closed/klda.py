"""Kernel linear discriminant analysis, KLDA (Momeni, Mazumder & Liu 2025).

"Continual learning using a kernel-based method over foundation models", AAAI: random Fourier
features of a Gaussian kernel, then class means and one shared covariance; an ensemble draws its
features several times and adds up the probabilities. The kernel's width is relative to the data
here, and the paper's pseudo-inverse is a small shrinkage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from conceptors.estimators.lift import RandomFeatures
from conceptors.estimators.sums import Sums
from conceptors.experiments.methods.closed.base import ClosedForm, Head
from conceptors.experiments.methods.closed.settings import ClosedSettings
from conceptors.experiments.methods.closed.slda import discriminants
from conceptors.experiments.methods.settings import OwnSettings, setting


@dataclass(frozen=True)
class KldaSettings(ClosedSettings):
    lift: int = setting(2000, "random Fourier features of each member")
    members: int = setting(1, "of the ensemble")
    spread: float = setting(0.7, "of the frequencies, where 1 over it is the kernel's width")
    shrinkage: float = setting(1e-4, "ε of (1 - ε) Σ + ε I, between 0 and 1")

    def check(self) -> None:
        super().check()
        for name in ("lift", "members"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.shrinkage > 1:
            raise ValueError(f"shrinkage must be between 0 and 1, got {self.shrinkage}")


class KernelLda(Head):
    """For each member, sums of its features' products and of the features of every class."""

    def __init__(self, scenario: Any, settings: Any, seed: int) -> None:
        super().__init__(scenario, settings, seed)
        s = settings
        self.lifts = nn.ModuleList(
            RandomFeatures(
                self.width, s.lift, "fourier", shape=0.0, spread=s.spread, seed=seed + 1_000 * k
            )
            for k in range(s.members)
        )
        self.sums = [Sums(s.lift, self.classes) for _ in range(s.members)]

    def calibrate(self, rows: Tensor) -> None:
        for lift in self.lifts:
            lift.calibrate(rows)  # type: ignore[operator]

    def add(self, rows: Tensor, labels: Tensor) -> None:
        for lift, sums in zip(self.lifts, self.sums):
            sums.to(rows.device)
            sums.add(lift(rows), labels)

    def finish(self) -> None:
        self.solved = [discriminants(sums, self.settings.shrinkage) for sums in self.sums]

    def scores(self, rows: Tensor) -> Tensor:
        """Mean probability."""
        total = torch.zeros(len(rows), self.classes, dtype=torch.float64, device=rows.device)
        for lift, (weights, biases) in zip(self.lifts, self.solved):
            logits = lift(rows).double() @ weights.mT + biases
            total += logits.masked_fill(~self.seen, -torch.inf).softmax(1)
        return total / len(self.solved)

    def kept(self) -> list[Tensor]:
        return [part for sums in self.sums for part in sums.tensors().values()]


class Klda(ClosedForm):
    name: ClassVar[str] = "klda"
    about: ClassVar[str] = "kernel linear discriminant analysis (Momeni et al. 2025)"
    settings_type: ClassVar[type[OwnSettings]] = KldaSettings
    head: ClassVar[type[Head]] = KernelLda
