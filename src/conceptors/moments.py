"""Second moments of the rows that enter a site, as the shield collects them in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors.conceptor import Conceptor
from conceptors.layers import Moment, Rows
from conceptors.sketch import FrequentDirections


class Moments:
    """Σ w [x; e] [x; e]ᵀ `[g, d + k, d + k]` of rows `[g, n, d]`, with k bias columns.

    e marks which of the k biases a row goes with (all zero for a layer without bias).
    """

    def __init__(self, groups: int, dim: int, biases: int, like: Tensor) -> None:
        self.biases = biases
        self.total = torch.zeros(groups, dim, dim, dtype=like.dtype, device=like.device)
        self.weight = 0.0

    def add(self, rows: Rows | Moment, bias_column: int | None) -> None:
        """Add the rows of one call."""
        if isinstance(rows, Moment):
            self.total += rows.total.to(self.total)
            self.weight += rows.weight
        elif rows.values.shape[1]:
            wide = with_bias(rows.values.to(self.total), self.biases, bias_column)
            self.total.baddbmm_(wide.mT, wide, alpha=rows.weight)
            self.weight += rows.values.shape[1] * rows.weight

    @property
    def dim(self) -> int:
        return self.total.shape[-1]

    def finite(self) -> Tensor:
        """Whether all is well so far, as a bool tensor (asking costs a wait for the device)."""
        return self.total.sum().isfinite()

    def all_reduce(self, group: Any = None) -> None:
        """Sum over all processes."""
        weight = torch.tensor([self.weight], dtype=torch.float64, device=self.total.device)
        dist.all_reduce(self.total, group=group)
        dist.all_reduce(weight, group=group)
        self.weight = float(weight)

    def eigenvalues(self) -> Tensor:
        """Of R, `[g, d]`, descending, never negative, in float64."""
        return _descending(self.correlation().double())

    def correlation(self) -> Tensor:
        """R `[g, d, d]`, symmetric."""
        matrix: Tensor = (self.total + self.total.mT) / (2 * self.weight)
        return matrix

    def energy(self) -> Tensor:
        """E|x|² `[g]`."""
        trace: Tensor = self.total.diagonal(dim1=-2, dim2=-1).sum(-1) / self.weight
        return trace

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        """The conceptors `[g]` of the rows, in float64."""
        return Conceptor.from_correlation(self.correlation().double(), aperture)


class SketchedMoments:
    """The same for one group, in 2 d · rank numbers instead of d² (see `FrequentDirections`)."""

    def __init__(self, dim: int, rank: int, biases: int, like: Tensor) -> None:
        self.biases = biases
        self._finite = torch.tensor(True, device=like.device)
        self.sketch = FrequentDirections(dim, rank, dtype=like.dtype, device=like.device)

    @property
    def dim(self) -> int:
        return self.sketch.dim

    @property
    def weight(self) -> float:
        return self.sketch.weight

    def add(self, rows: Rows | Moment, bias_column: int | None) -> None:
        if isinstance(rows, Moment):
            raise TypeError("a rule for a wide layer must give rows, not moments")
        samples = with_bias(rows.values, self.biases, bias_column)[0]
        if not bool(samples.isfinite().all()):
            self._finite = torch.zeros_like(self._finite)
            return
        weights = torch.full((len(samples),), rows.weight, dtype=torch.float64)
        self.sketch.update(_real(samples), weights.to(samples.device))

    def finite(self) -> Tensor:
        return self._finite

    def all_reduce(self, group: Any = None) -> None:
        self.sketch.all_reduce(group)

    def eigenvalues(self) -> Tensor:
        rows = self.sketch.rows().double()
        return _descending(rows @ rows.mT)[None]

    def energy(self) -> Tensor:
        return self.sketch.rows().square().sum()[None]

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        rows = self.sketch.rows().double()
        # from_states divides by the number of rows; the sketch is a sum already.
        return Conceptor.from_states(rows[None] * len(rows) ** 0.5, aperture)


def with_bias(rows: Tensor, biases: int, column: int | None) -> Tensor:
    """Rows `[g, n, d]` with `biases` columns appended, 1 in the one given and 0 in the others."""
    if not biases:
        return rows
    marks = rows.new_zeros(*rows.shape[:2], biases)
    if column is not None:
        marks[..., column] = 1
    return torch.cat([rows, marks], -1)


def _descending(matrix: Tensor) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(matrix).flip(-1).clamp_min(0)
    return values


def _real(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
