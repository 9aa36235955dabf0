"""Second moments of the rows that enter a site, as the shield collects them in one pass."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors._internal.precision import exactly, full, tensor_cores
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import SpectrumForm
from conceptors.layers import OwnedRows, Rows, SecondMoment
from conceptors.moments.frequent_directions import FrequentDirections

_ENOUGH = 4096  # rows that are worth a pass over the d x d total


class Products:
    """XᵀX of the rows last multiplied, for another site that was given the very same tensors."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self._found: tuple[Tensor, Tensor] | None = None

    def of(self, chunks: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(XᵀX `[g, d, d]`, Σ x `[g, d]`) of the rows of all chunks, which must never change."""
        same = len(chunks) == len(self._chunks) and all(map(is_, chunks, self._chunks))
        if self._found is None or not same or self._found[1].dtype != dtype:
            self._chunks, self._found = list(chunks), multiplied(chunks, dtype)
        return self._found


def multiplied(chunks: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(XᵀX `[g, d, d]`, Σ x `[g, d]`) of rows in chunks `[g, n, d]`, summed in `dtype`.

    Numbers of half precision have exact products in float32, also on tensor cores (TF32), and are
    summed up in that.
    """
    rows = chunks[0] if len(chunks) == 1 else torch.cat(chunks, 1)
    sums = rows.sum(1, dtype=dtype)
    if rows.shape[-1] == 1:
        return rows.to(dtype).square().sum(1, keepdim=True), sums
    if rows.dtype in (torch.float16, torch.bfloat16):
        with tensor_cores():
            return _gram(rows.float()), sums
    return _gram(rows.to(dtype)), sums


def _gram(rows: Tensor) -> Tensor:
    """XᵀX; one matrix at a time is faster than a batch of one."""
    return (rows[0].mT @ rows[0])[None] if len(rows) == 1 else rows.mT @ rows


class Moments:
    """Σ w [x; e] [x; e]ᵀ `[g, d + k, d + k]` of rows `[g, n, d]`, with k bias columns.

    e marks which of the k biases a row goes with (all zero for a layer without bias). Rows are
    kept until there are as many as columns, and 4096; call `flush` before reading.

    With `presence`, the groups are tokens: R is 1 for each one that was met, however seldom.
    """

    def __init__(
        self,
        groups: int,
        dim: int,
        biases: int,
        like: Tensor,
        products: Products | None = None,
        presence: bool = False,
    ) -> None:
        self.biases = biases
        self._presence = presence
        self.total = torch.zeros(groups, dim, dim, dtype=like.dtype, device=like.device)
        self.weight = 0.0
        self.coarsest = 0.0  # rounding of the rows themselves
        self._products = products or Products()
        self._kept: dict[tuple[float, int | None, torch.dtype], list[Tensor]] = {}
        self._count = 0

    def add(self, rows: Rows | SecondMoment, bias_column: int | None) -> None:
        """Add the rows of one call."""
        self.weight += rows.weight * (1 if isinstance(rows, SecondMoment) else rows.values.shape[1])
        if isinstance(rows, SecondMoment):
            self.total += rows.total.to(self.total)
            return
        values, enough = rows.values, max(_ENOUGH, self.dim)
        if not values.shape[1]:
            return
        self.coarsest = max(self.coarsest, rounding(values))
        if not isinstance(rows, OwnedRows):
            if values.shape[1] >= enough:
                with exactly():
                    found = multiplied([values], self.total.dtype)
                    self._add(*found, values.shape[1], rows.weight, bias_column)
                return
            values = values.clone()
        key = (rows.weight, bias_column, values.dtype)
        self._kept.setdefault(key, []).append(values)
        self._count += values.shape[1]
        if self._count >= enough:
            self.flush()

    def flush(self) -> None:
        """Multiply the rows kept so far."""
        with exactly():
            for (weight, bias_column, _), chunks in self._kept.items():
                count = sum(chunk.shape[1] for chunk in chunks)
                product, sums = self._products.of(chunks, self.total.dtype)
                self._add(product, sums, count, weight, bias_column)
        self._kept, self._count = {}, 0

    def _add(
        self, product: Tensor, sums: Tensor, count: int, weight: float, bias_column: int | None
    ) -> None:
        dim = product.shape[-1]
        self.total[:, :dim, :dim].add_(product, alpha=weight)
        if bias_column is not None:
            bias = dim + bias_column
            self.total[:, :dim, bias].add_(sums, alpha=weight)
            self.total[:, bias, :dim].add_(sums, alpha=weight)
            self.total[:, bias, bias].add_(count * weight)

    @property
    def dim(self) -> int:
        return self.total.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.total.dtype

    @property
    def dropped(self) -> float:
        """The share of the largest direction that may be missing in any other: none here."""
        return 0.0

    @property
    def groups(self) -> int:
        return self.total.shape[0]

    def all_reduce(self, group: Any = None) -> None:
        """Sum over all processes."""
        weight = torch.tensor(self.weight, dtype=torch.float64, device=self.total.device)
        dist.all_reduce(self.total, group=group)
        dist.all_reduce(weight, group=group)
        self.weight = float(weight)

    def eigenvalues(self) -> Tensor:
        """Of R, `[g, d]`, descending, never negative, in float64."""
        return _descending(self.correlation().double())

    def correlation(self) -> Tensor:
        """R `[g, d, d]`, symmetric."""
        if self._presence:
            return (self.total > 0).to(self.total.dtype)
        matrix: Tensor = (self.total + self.total.mT) / (2 * self.weight)
        return matrix

    def energy(self) -> Tensor:
        """E|x|² `[g]`."""
        return self.correlation().diagonal(dim1=-2, dim2=-1).sum(-1)

    def output_energy(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """(E|x|², E|W x|²) `[g]` each for W `[g, out, d]`; tokens count as often as met."""
        R = self.total / self.weight
        inputs: Tensor = R.diagonal(dim1=-2, dim2=-1).sum(-1)
        matrix = full(matrix)
        if R.shape[-1] == 1:
            return inputs, matrix.square().sum((1, 2)) * inputs
        return inputs, ((matrix @ R.to(matrix)) * matrix).sum((1, 2)).to(inputs)

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        """The conceptors `[g]` of the rows, in float64."""
        return Conceptor.from_second_moment(self.correlation().double(), aperture)

    def projector(self, rounding: float) -> Conceptor:
        """The projectors `[g]` on all directions of the rows but rounding, in float64."""
        spectrum = spectra.occupied(self.correlation().double(), rounding)
        return Conceptor.from_form(SpectrumForm(spectrum, torch.float64))


class SketchedMoments:
    """The same for one group, in 2 d · rank numbers instead of d² (see `FrequentDirections`)."""

    def __init__(self, dim: int, rank: int, biases: int, like: Tensor) -> None:
        self.biases, self.groups, self.coarsest = biases, 1, 0.0
        self.sketch = FrequentDirections(dim, rank, dtype=like.dtype, device=like.device)

    @property
    def dim(self) -> int:
        return self.sketch.dim

    @property
    def dtype(self) -> torch.dtype:
        return self.sketch.rows().dtype

    @property
    def dropped(self) -> float:
        """The share of the largest direction that may be missing in any other."""
        return self.sketch.error_bound / max(float(self.eigenvalues().max()), 1e-300)

    @property
    def weight(self) -> float:
        return self.sketch.weight

    def add(self, rows: Rows | SecondMoment, bias_column: int | None) -> None:
        if isinstance(rows, SecondMoment):
            raise TypeError("a rule for a wide layer must give rows, not moments")
        self.coarsest = max(self.coarsest, rounding(rows.values))
        samples = with_bias(rows.values, self.biases, bias_column)[0]
        if not bool(samples.isfinite().all()):
            return  # the caller checks for this, and names the layer and the batch
        weights = torch.full((len(samples),), rows.weight, dtype=torch.float64)
        self.sketch.update(_real(samples), weights.to(samples.device))

    def flush(self) -> None:
        """Nothing is kept."""

    def all_reduce(self, group: Any = None) -> None:
        self.sketch.all_reduce(group)

    def eigenvalues(self) -> Tensor:
        rows = self.sketch.rows().double()
        return _descending(rows @ rows.mT)[None]

    def energy(self) -> Tensor:
        return self.sketch.rows().square().sum()[None]

    def output_energy(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        inputs, matrix = self.energy(), full(matrix[0])
        outputs = (matrix @ self.sketch.rows().to(matrix).mT).square().sum()
        return inputs, outputs.to(inputs)[None]

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        found = self.sketch.conceptor(float(torch.as_tensor(aperture))).to(torch.float64)
        return found.mapped(lambda tensor, _: tensor[None])


def rounding(rows: Tensor) -> float:
    """The mean square of what rounding adds to numbers of this dtype, relative to theirs."""
    return torch.finfo(rows.dtype).eps ** 2 / 24  # of an error spread over ± eps / 2 · 2^k <= |x|


def with_bias(rows: Tensor, biases: int, column: int | None) -> Tensor:
    """Rows `[g, n, d]` with `biases` columns appended, 1 in the one given and 0 in the others."""
    if not biases:
        return rows
    marks = rows.new_zeros(*rows.shape[:2], biases)
    if column is not None:
        marks[..., column] = 1
    return torch.cat([rows, marks], -1)


def _descending(matrix: Tensor) -> Tensor:
    """Eigenvalues; of many tiny matrices by formula, as libraries take gigabytes for them."""
    if matrix.shape[-1] == 1:
        return matrix[..., 0].clamp_min(0)
    if matrix.shape[-1] == 2:
        middle = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
        half = (matrix[..., 0, 0] - matrix[..., 1, 1]) / 2
        spread = torch.hypot(half, matrix[..., 0, 1])
        return torch.stack([middle + spread, middle - spread], -1).clamp_min(0)
    values: Tensor = torch.linalg.eigvalsh(matrix).flip(-1).clamp_min(0)
    return values


def _real(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
