"""Second moments of grouped rows, as the shield collects them in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors.layers import Moment, Rows


class Moments:
    """Σ w [x; e] [x; e]ᵀ `[g, d + k, d + k]` of rows `[g, n, d]`, with k bias columns.

    e marks which of the k biases a row goes with (all zero for a layer without bias).
    """

    def __init__(self, biases: int, dtype: torch.dtype) -> None:
        self.biases = biases
        self.dtype = dtype
        self.total: Tensor | None = None
        self.weight = 0.0

    def add(self, rows: Rows | Moment, bias_column: int | None) -> None:
        """Add the rows of one call."""
        if isinstance(rows, Moment):
            self._add(rows.total.to(self.dtype), rows.weight)
            return
        values = rows.values
        if values.shape[1] == 0:
            return
        wide = values.to(self.dtype)
        if self.biases:
            marks = wide.new_zeros(*wide.shape[:2], self.biases)
            if bias_column is not None:
                marks[..., bias_column] = 1
            wide = torch.cat([wide, marks], -1)
        self._add(wide.mT @ wide * rows.weight, values.shape[1] * rows.weight)

    def _add(self, total: Tensor, weight: float) -> None:
        self.total = total if self.total is None else self.total + total
        self.weight += weight

    def all_reduce(self, shape: torch.Size, device: torch.device, group: Any = None) -> None:
        """Sum over all processes; a process that saw no rows brings zeros of `shape`."""
        if self.total is None:
            self.total = torch.zeros(shape, dtype=self.dtype, device=device)
        weight = torch.tensor([self.weight], dtype=torch.float64, device=device)
        dist.all_reduce(self.total, group=group)
        dist.all_reduce(weight, group=group)
        self.weight = float(weight)

    def correlation(self) -> Tensor | None:
        """R `[g, d, d]`; None if no rows came."""
        if self.total is None or self.weight <= 0:
            return None
        matrix: Tensor = (self.total + self.total.mT) / (2 * self.weight)
        return matrix
