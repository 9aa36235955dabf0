"""Exact second moments of data that comes in parts: update, merge, reduce over processes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors._internal import checks
from conceptors._internal.precision import exactly
from conceptors.algebra.conceptor import Conceptor

_BLOCKS = 16  # blocks of columns: a little more than half of a symmetric matrix is computed
_SMALLEST_BLOCK = 128


class Correlation:
    """The exact second moments R = Σ w x xᵀ / Σ w `[d, d]` of samples x that come in batches.

    Samples are converted to float64 before they are multiplied, so the order and size of the
    batches do not matter beyond rounding.

    Attributes:
        sum: Σ w x xᵀ `[d, d]`, or `[groups, d, d]`; always changed in place.
        weight: Σ w.
        count: the number of samples.

    >>> import torch
    >>> X = torch.arange(12.0).reshape(6, 2)
    >>> R = Correlation(2)
    >>> for batch in X.split(4):
    ...     _ = R.update(batch)
    >>> torch.allclose(R.matrix(), (X.mT @ X).double() / 6, rtol=1e-15)
    True
    >>> R
    Correlation(dim=2, count=6, weight=6)
    """

    def __init__(
        self, dim: int, *, groups: int | None = None, device: torch.device | str | None = None
    ) -> None:
        """With `groups`, that many matrices side by side, of samples `[groups, n, d]`."""
        self.dim = checks.whole(dim, "dim", 1)
        batch = () if groups is None else (checks.whole(groups, "groups", 1),)
        self.sum = torch.zeros(*batch, self.dim, self.dim, dtype=torch.float64, device=device)
        self.weight = 0.0
        self.count = 0

    def update(self, samples: Tensor, weight: float = 1.0) -> Correlation:
        """Add samples `[..., d]` (with groups `[groups, n, d]`), each counted `weight` times.

        An empty batch changes nothing.
        """
        rows, weight = check_batch(samples, weight, self.sum)
        count = rows.shape[-2]
        check_total(self._trace() + weight * rows.square().sum(), self.weight + weight * count)
        add_products_(self.sum, rows, rows * weight)
        self.weight += weight * count
        self.count += count
        return self

    def add(self, total: Tensor, weight: float, count: int = 0) -> Correlation:
        """Add a finished sum Σ w x xᵀ `[d, d]`, such as a stored one, without checks."""
        self.sum += total.to(self.sum)
        self.weight += weight
        self.count += count
        return self

    def merge(self, other: Correlation) -> Correlation:
        """Add the samples of another correlation. Merging is associative and commutative."""
        check_mergeable(self, other)
        if other.sum.shape != self.sum.shape:
            raise ValueError("cannot merge second moments with different numbers of groups")
        check_total(self._trace() + other._trace().to(self.sum), self.weight + other.weight)
        return self.add(other.sum, other.weight, other.count)

    def all_reduce(self, group: Any = None) -> Correlation:
        """Replace this by the sum over all processes, where torch.distributed is initialised."""
        if dist.is_available() and dist.is_initialized():
            totals = self.sum.new_tensor([self.weight, self.count], dtype=torch.float64)
            dist.all_reduce(self.sum, group=group)
            dist.all_reduce(totals, group=group)
            self.weight, self.count = float(totals[0]), int(totals[1])
        return self

    def matrix(self) -> Tensor:
        """R `[d, d]` or `[groups, d, d]`, exactly symmetric, as a new tensor."""
        check_has_samples(self)
        return (self.sum + self.sum.mT) / (2 * self.weight)

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        """The conceptor of all samples so far; with groups, a batch."""
        return Conceptor.from_correlation(self.matrix(), aperture)

    def _trace(self) -> Tensor:
        return self.sum.diagonal(dim1=-2, dim2=-1).sum()

    def __repr__(self) -> str:
        return f"Correlation(dim={self.dim}, count={self.count}, weight={self.weight:g})"


@exactly()
def add_products_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add leftᵀ right `[..., d, d]`, which is symmetric, to `total` in place.

    Products are computed in the dtype of `left` and `right` `[..., n, d]`, and added in that of
    `total`. `total` is symmetric too: what is below the diagonal is copied from above it.
    """
    dim = total.shape[-1]
    size = max(_SMALLEST_BLOCK, -(-dim // _BLOCKS))
    for start in range(0, dim, size):
        stop = min(start + size, dim)
        upper = total[..., start:stop, start:]
        upper.add_(left[..., start:stop].mT @ right[..., start:])
        total[..., stop:, start:stop] = upper[..., stop - start :].mT


def check_batch(samples: Any, weight: Any, like: Tensor) -> tuple[Tensor, float]:
    """Return samples `[n, d]` (`[groups, n, d]` if `like` has groups) in float64, and a weight."""
    groups, dim = like.shape[:-2], like.shape[-1]
    samples = checks.real_tensor(samples, "samples").detach()
    fits = samples.shape[:-2] == groups if groups else samples.ndim >= 2
    if not fits or samples.shape[-1] != dim:
        raise ValueError(
            f"samples must have shape [{groups[0] if groups else '...'}, n, {dim}], got "
            f"{list(samples.shape)}; a single sample needs a row axis: samples[None]"
        )
    if samples.device != like.device:
        raise ValueError(f"samples are on {samples.device}; move them to {like.device} of the sum")
    rows = checks.finite(samples, "samples").reshape(*groups, -1, dim).double()
    return rows, checks.number(weight, "weight", 0.0, math.inf)


def check_total(trace: Tensor, weight: float) -> None:
    """Refuse samples whose squares overflow the running sum; no entry exceeds the trace."""
    if not (math.isfinite(2 * float(trace)) and math.isfinite(weight)):
        raise ValueError(
            f"the sum of squares ({float(trace):.3g}) or of weights ({weight:.3g}) overflows "
            f"{trace.dtype}; scale the samples or the weights"
        )


def check_mergeable(a: Any, b: Any) -> None:
    """Refuse to merge things of different kind or size, or a thing with itself."""
    if type(a) is not type(b):
        raise TypeError(f"cannot merge a {type(b).__name__} into a {type(a).__name__}")
    if a is b:
        raise ValueError("cannot merge a running sum with itself; merge a copy.deepcopy of it")
    if a.dim != b.dim:
        raise ValueError(f"cannot merge second moments of dimension {b.dim} into {a.dim}")


def check_has_samples(sums: Any) -> None:
    if sums.weight <= 0:
        raise ValueError(
            f"there are no samples of positive weight yet (count {sums.count}), so there is no "
            f"mean; call update(samples) with rows of {sums.dim} numbers first"
        )
