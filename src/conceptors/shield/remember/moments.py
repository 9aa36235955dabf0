"""Second moments of a block's rows, exact or as a sketch."""

from __future__ import annotations

from operator import is_

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors._internal.precision import exactly, full, tensor_cores
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import SpectrumForm
from conceptors.layers import OwnedRows, Rows, SecondMoment
from conceptors.moments.frequent_directions import FrequentDirections

_BUFFERED = 4096  # rows that are collected before they are added to the d x d total


class Products:
    """Cache XᵀX of the last rows, for another block that receives the same tensors."""

    def __init__(self) -> None:
        self._chunks: list[Tensor] = []
        self._result: tuple[Tensor, Tensor] | None = None

    def of(self, chunks: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return XᵀX `[g, d, d]` and Σ x `[g, d]` of the rows of chunks that never change."""
        same = len(chunks) == len(self._chunks) and all(map(is_, chunks, self._chunks))
        if self._result is None or not same or self._result[1].dtype != dtype:
            self._chunks, self._result = list(chunks), products_and_sums(chunks, dtype)
        return self._result


def products_and_sums(chunks: list[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Compute XᵀX `[g, d, d]` and Σ x `[g, d]` of rows in chunks `[g, n, d]`, in `dtype`.

    Products of half-precision numbers are exact in float32, also on tensor cores (TF32), and are
    summed in float32.
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
    """Compute XᵀX; a single matrix is faster than a batch of one."""
    return (rows[0].mT @ rows[0])[None] if len(rows) == 1 else rows.mT @ rows


class Moments:
    """Σ w [x; e] [x; e]ᵀ `[g, d + k, d + k]` of rows `[g, n, d]`, with k bias columns.

    e marks the bias of a row (all zero for a layer without bias). Rows are buffered until there
    are at least 4096 and as many as columns; call `flush` before reading.

    With `presence`, the groups are tokens, and R is 1 for each token that occurred.
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
        self.coarsest = 0.0  # the largest rounding error of the rows
        self._products = products or Products()
        self._buffered: dict[tuple[float, int | None, torch.dtype], list[Tensor]] = {}
        self._count = 0

    def add(self, rows: Rows | SecondMoment, bias_column: int | None) -> None:
        """Add the rows of one call."""
        self.weight += rows.weight * (1 if isinstance(rows, SecondMoment) else rows.values.shape[1])
        if isinstance(rows, SecondMoment):
            self.total += rows.total.to(self.total)
            return
        values, enough = rows.values, max(_BUFFERED, self.dim)
        if not values.shape[1]:
            return
        self.coarsest = max(self.coarsest, rounding(values))
        if not isinstance(rows, OwnedRows):
            if values.shape[1] >= enough:
                with exactly():
                    products = products_and_sums([values], self.total.dtype)
                    self._add(*products, values.shape[1], rows.weight, bias_column)
                return
            values = values.clone()
        key = (rows.weight, bias_column, values.dtype)
        self._buffered.setdefault(key, []).append(values)
        self._count += values.shape[1]
        if self._count >= enough:
            self.flush()

    def flush(self) -> None:
        """Add the buffered rows to the total."""
        with exactly():
            for (weight, bias_column, _), chunks in self._buffered.items():
                count = sum(chunk.shape[1] for chunk in chunks)
                product, sums = self._products.of(chunks, self.total.dtype)
                self._add(product, sums, count, weight, bias_column)
        self._buffered, self._count = {}, 0

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
        """The largest error of a direction relative to the largest one: none here."""
        return 0.0

    @property
    def groups(self) -> int:
        return self.total.shape[0]

    def all_reduce(self) -> None:
        """Sum over all processes."""
        weight = torch.tensor(self.weight, dtype=torch.float64, device=self.total.device)
        dist.all_reduce(self.total)
        dist.all_reduce(weight)
        self.weight = float(weight)

    def eigenvalues(self) -> Tensor:
        """Compute the eigenvalues of R `[g, d]`, descending, at least 0, in float64."""
        return _descending(self.correlation().double())

    def correlation(self) -> Tensor:
        """Compute R `[g, d, d]`."""
        if self._presence:
            return (self.total > 0).to(self.total.dtype)
        matrix: Tensor = (self.total + self.total.mT) / (2 * self.weight)
        return matrix

    def energy(self) -> Tensor:
        """Compute E|x|² `[g]`."""
        return self.correlation().diagonal(dim1=-2, dim2=-1).sum(-1)

    def output_energy(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Compute E|x|² and E|W x|² `[g]` for W `[g, out, d]`, with the frequencies of tokens."""
        R = self.total / self.weight
        inputs: Tensor = R.diagonal(dim1=-2, dim2=-1).sum(-1)
        matrix = full(matrix)
        if R.shape[-1] == 1:
            return inputs, matrix.square().sum((1, 2)) * inputs
        return inputs, ((matrix @ R.to(matrix)) * matrix).sum((1, 2)).to(inputs)

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        """Compute the conceptors `[g]` of the rows, in float64."""
        return Conceptor.from_second_moment(self.correlation().double(), aperture)

    def projector(self, rounding: float) -> Conceptor:
        """Compute the projectors `[g]` on all directions of the rows above rounding, in float64."""
        spectrum = spectra.occupied(self.correlation().double(), rounding)
        return Conceptor.from_form(SpectrumForm(spectrum, torch.float64))


class SketchedMoments:
    """Second moments of one group in 2 d · rank numbers instead of d² (`FrequentDirections`)."""

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
        """The largest error of a direction relative to the largest one."""
        return self.sketch.error_bound / max(float(self.eigenvalues().max()), 1e-300)

    @property
    def weight(self) -> float:
        return self.sketch.weight

    def add(self, rows: Rows | SecondMoment, bias_column: int | None) -> None:
        if isinstance(rows, SecondMoment):
            raise TypeError("a rule for a wide layer must yield rows, not second moments")
        self.coarsest = max(self.coarsest, rounding(rows.values))
        samples = with_bias(rows.values, self.biases, bias_column)[0]
        if not bool(samples.isfinite().all()):
            return  # FiniteCheck raises an error with the layer and the batch
        weights = torch.full((len(samples),), rows.weight, dtype=torch.float64)
        self.sketch.update(full(samples), weights.to(samples.device))

    def flush(self) -> None:
        """Do nothing: no rows are buffered."""

    def all_reduce(self) -> None:
        self.sketch.all_reduce()

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
        conceptor = self.sketch.conceptor(float(torch.as_tensor(aperture))).to(torch.float64)
        return conceptor.mapped(lambda tensor, _: tensor[None])


def rounding(rows: Tensor) -> float:
    """Return the relative mean square of rounding errors in this dtype."""
    return torch.finfo(rows.dtype).eps ** 2 / 24  # errors are uniform in ± eps / 2 · 2^k <= |x|


def with_bias(rows: Tensor, biases: int, column: int | None) -> Tensor:
    """Append `biases` columns to rows `[g, n, d]`: 1 in the given column, 0 in the others."""
    if not biases:
        return rows
    marks = rows.new_zeros(*rows.shape[:2], biases)
    if column is not None:
        marks[..., column] = 1
    return torch.cat([rows, marks], -1)


def _descending(matrix: Tensor) -> Tensor:
    """Compute eigenvalues, of tiny matrices by formula, because libraries need gigabytes there."""
    if matrix.shape[-1] == 1:
        return matrix[..., 0].clamp_min(0)
    if matrix.shape[-1] == 2:
        middle = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)
        half = (matrix[..., 0, 0] - matrix[..., 1, 1]) / 2
        spread = torch.hypot(half, matrix[..., 0, 1])
        return torch.stack([middle + spread, middle - spread], -1).clamp_min(0)
    values: Tensor = torch.linalg.eigvalsh(matrix).flip(-1).clamp_min(0)
    return values
