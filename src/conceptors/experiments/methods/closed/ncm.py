"""Nearest class mean: stores the least of a class."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from conceptors.experiments.methods.closed.base import ClosedForm


class Ncm(ClosedForm):
    name = "ncm"
    about = "nearest class mean"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.sums = self.seen.new_zeros(self.classes, self.width).double()
        self.counts = self.seen.new_zeros(self.classes).double()

    def add(self, rows: Tensor, labels: Tensor) -> None:
        members = functional.one_hot(labels, self.classes).double()
        self.sums += members.mT @ rows.double()
        self.counts += members.sum(0)

    def scores(self, rows: Tensor) -> Tensor:
        """-|x - μ|² without |x|², which is the same for all classes."""
        means = self.sums / self.counts.clamp_min(1)[:, None]
        return 2 * rows.double() @ means.mT - means.square().sum(1)

    def stored_numbers(self) -> int:
        return self.sums.numel() + len(self.counts)
