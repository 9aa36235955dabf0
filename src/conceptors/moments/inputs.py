"""The second moments of one layer's inputs, with a column for each bias, exact or as a sketch."""

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal.precision import exactly, full, tensor_cores
from conceptors.algebra.conceptor import Conceptor
from conceptors.moments.correlation import Correlation, add_products_
from conceptors.moments.frequent_directions import FrequentDirections

_BUFFERED = 4096  # rows that are collected before their products are computed


class InputMoments:
    """Σ w [x; e] [x; e]ᵀ of rows `[g, n, d]`, with k bias columns; for wide layers as a sketch.

    e marks the bias of a row (all zero for a layer without bias). Rows are buffered until there
    are at least 4096 and as many as columns; call `flush` before reading.

    Args:
        dim: d + k.
        rank: the size of a sketch, for one group; None for exact sums.
        only_occurrence: whether R is 1 where anything occurred, as for the tokens of a vocabulary.

    Attributes:
        sums: `[g, d + k, d + k]`, or the sketch, in float64.
        coarsest: the largest rounding error of the rows.
    """

    def __init__(
        self,
        groups: int,
        dim: int,
        biases: int = 0,
        *,
        rank: int | None = None,
        only_occurrence: bool = False,
        device: torch.device | None = None,
    ) -> None:
        self.groups, self.dim, self.biases, self.coarsest = groups, dim, biases, 0.0
        self._only_occurrence = only_occurrence
        self._buffered: dict[float, list[Tensor]] = {}  # rows by weight
        self._count = 0  # of buffered rows
        self.sums: Correlation | FrequentDirections
        if rank is not None and groups == 1 and rank < dim:
            self.sums = FrequentDirections(dim, rank, device=device)
        else:
            self.sums = Correlation(dim, groups=groups, device=device)

    @property
    def is_sketch(self) -> bool:
        return isinstance(self.sums, FrequentDirections)

    @property
    def dropped(self) -> float:
        """The largest error of a direction of a sketch, relative to the largest direction."""
        if not isinstance(self.sums, FrequentDirections):
            return 0.0
        top = float(torch.linalg.matrix_norm(self.correlation(), 2))
        return self.sums.error_bound / max(top, 1e-300)

    def add_rows(self, rows: Tensor, weight: float, bias_column: int | None) -> None:
        """Add rows `[g, n, d]`, each of a weight."""
        inner = self.dim - self.biases
        if rows.ndim != 3 or rows.shape[::2] != (self.groups, inner):
            wanted = f"[{self.groups}, n, {inner}]"
            raise ValueError(f"rows must have shape {wanted}, got {list(rows.shape)}")
        values = functional.pad(rows, (0, self.biases))  # a copy
        if bias_column is not None:
            values[..., inner + bias_column] = 1
        self.coarsest = max(self.coarsest, rounding(values.dtype))
        self._buffered.setdefault(weight, []).append(values)
        self._count += rows.shape[1]
        if self.is_sketch or self._count >= max(_BUFFERED, self.dim):
            self.flush()

    def add_moments(self, total: Tensor, weight: float) -> None:
        """Add a sum of second moments `[g, d + k, d + k]` over rows of this total weight."""
        if total.shape != (self.groups, self.dim, self.dim):
            wanted = [self.groups, self.dim, self.dim]
            raise ValueError(f"second moments must have shape {wanted}, got {list(total.shape)}")
        if isinstance(self.sums, FrequentDirections):
            raise TypeError("a rule for a wide layer must yield rows, not second moments")
        self.sums.add(total, weight)

    @exactly()
    def flush(self) -> None:
        """Add the buffered rows to the sums.

        Products of half-precision numbers are exact in float32, also on tensor cores (TF32), and
        are summed in float32. Others are summed in float64.
        """
        for weight, chunks in self._buffered.items():
            rows = torch.cat(chunks, 1)
            count, is_half = rows.shape[1], rows.dtype in (torch.float16, torch.bfloat16)
            if isinstance(self.sums, FrequentDirections):
                self.sums.update(full(rows[0]), weight)
                continue
            wide = rows.float() if is_half else rows.double()
            if is_half and rows.is_cuda:
                with tensor_cores():
                    total = wide.mT @ wide
            else:
                total = wide.new_zeros(len(wide), self.dim, self.dim)
                one = wide.squeeze(0)  # a single matrix is faster than a batch of one
                add_products_(total.squeeze(0), one, one)
            self.sums.add(total * weight, count * weight)
        self._buffered, self._count = {}, 0

    def correlation(self) -> Tensor:
        """Compute R `[g, d, d]`; of tokens, 1 for each that occurred; of a sketch Bᵀ B, B Bᵀ."""
        if isinstance(self.sums, FrequentDirections):
            return (self.sums.rows() @ self.sums.rows().mT)[None]
        return (self.sums.sum > 0).double() if self._only_occurrence else self.sums.matrix()

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        """Compute the conceptors `[g]` of R."""
        if isinstance(self.sums, FrequentDirections):
            single = self.sums.conceptor(float(aperture))
            return single.mapped(lambda tensor, _: tensor[None])
        return Conceptor.from_second_moment(self.correlation(), aperture)

    def energy(self) -> Tensor:
        """Compute E|x|² `[g]`, of tokens their frequencies."""
        if isinstance(self.sums, FrequentDirections):
            return self.sums.rows().square().sum()[None]
        return self.sums.sum.diagonal(dim1=-2, dim2=-1).sum(-1) / self.sums.weight

    def output_energy(self, matrix: Tensor) -> Tensor:
        """Compute E|W x|² `[g]` for W `[g, out, d]`."""
        matrix = full(matrix)
        if isinstance(self.sums, FrequentDirections):
            return (matrix[0] @ self.sums.rows().to(matrix).mT).square().sum()[None]
        moment = (self.sums.sum / self.sums.weight).to(matrix)
        return ((matrix @ moment) * matrix).sum((1, 2))


def rounding(dtype: torch.dtype) -> float:
    """Return the relative mean square of rounding errors in a dtype."""
    return torch.finfo(dtype).eps ** 2 / 24  # errors are uniform in ± eps / 2 · 2^k <= |x|
