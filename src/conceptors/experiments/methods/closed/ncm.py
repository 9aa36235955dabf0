"""Nearest class mean: the least that can be stored of a class."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.experiments.methods.closed.base import ClosedForm, Head


class NearestMean(Head):
    """The mean of every class."""

    def __init__(self, scenario: Any, settings: Any, seed: int) -> None:
        super().__init__(scenario, settings, seed)
        self.sums = torch.zeros(self.classes, self.width, dtype=torch.float64)
        self.counts = torch.zeros(self.classes, dtype=torch.float64)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.sums, self.counts = self.sums.to(rows.device), self.counts.to(rows.device)
        members = functional.one_hot(labels, self.classes).double()
        self.sums += members.mT @ rows.double()
        self.counts += members.sum(0)

    def scores(self, rows: Tensor) -> Tensor:
        """-|x - μ|² but for |x|², which is the same for all classes."""
        means = self.sums / self.counts.clamp_min(1)[:, None]
        return 2 * rows.double() @ means.mT - means.square().sum(1)

    def kept(self) -> list[Tensor]:
        return [self.sums, self.counts]


class Ncm(ClosedForm):
    name: ClassVar[str] = "ncm"
    about: ClassVar[str] = "nearest class mean"
    head: ClassVar[type[Head]] = NearestMean
