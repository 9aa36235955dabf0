"""Second moments of a stream of samples, in one pass: update, merge, reduce over processes."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors._internal import checks
from conceptors.algebra.conceptor import Conceptor


class Correlation:
    """R = Σ w x xᵀ / Σ w of a stream of batches, exactly.

    The sum is kept in float64 whatever the dtype of the samples, so that the order and size of
    the batches do not matter beyond rounding.

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
        self,
        dim: int,
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.dim, dtype = checks.whole(dim, "dim", 1), checks.real_dtype(dtype)
        self.sum = torch.zeros(self.dim, self.dim, dtype=dtype, device=device)
        self.weight = 0.0
        self.count = 0

    def update(self, samples: Tensor, weights: Tensor | None = None) -> Correlation:
        """Add samples `[..., d]`, each of weight 1 or of the given weights `[...]` >= 0.

        A batch without samples changes nothing.
        """
        rows, weights = check_batch(samples, weights, self.dim, self.sum)
        wide = rows.to(self.sum.dtype)
        weighted = wide if weights is None else wide * weights.to(wide)[:, None]
        added = float(len(rows) if weights is None else weights.double().sum())
        check_total(self.sum.trace() + (wide * weighted).sum(), self.weight + added)
        self.sum.addmm_(wide.mT, weighted)
        self.weight += added
        self.count += len(rows)
        return self

    def merge(self, other: Correlation) -> Correlation:
        """Add everything another correlation has seen. Associative and commutative."""
        check_mergeable(self, other)
        trace = self.sum.trace() + other.sum.trace().to(self.sum)
        check_total(trace, self.weight + other.weight)
        self.sum += other.sum.to(self.sum)
        self.weight += other.weight
        self.count += other.count
        return self

    def all_reduce(self, group: Any = None) -> Correlation:
        """Replace this by the sum over all processes, where torch.distributed is initialised."""
        if dist.is_available() and dist.is_initialized():
            scalars = torch.tensor([self.weight, float(self.count)], dtype=torch.float64)
            scalars = scalars.to(self.sum.device)
            dist.all_reduce(self.sum, group=group)
            dist.all_reduce(scalars, group=group)
            self.weight, self.count = float(scalars[0]), round(float(scalars[1]))
        return self

    def matrix(self) -> Tensor:
        """R `[d, d]`, symmetric; a new tensor."""
        if self.weight <= 0:
            raise ValueError(
                f"no samples of positive weight yet (count {self.count}); call update(samples) "
                f"with rows of {self.dim} numbers first"
            )
        return (self.sum + self.sum.mT) / (2 * self.weight)

    def conceptor(self, aperture: float) -> Conceptor:
        """The conceptor of all samples so far."""
        return Conceptor.from_correlation(self.matrix(), aperture)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to resume later."""
        return {"sum": self.sum.clone(), "weight": self.weight, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state of the same dimension."""
        if not isinstance(state, dict) or not {"sum", "weight", "count"} <= state.keys():
            raise ValueError(
                "the state of a correlation is a dict of sum, weight and count, got "
                f"{sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__}; "
                "pass what state_dict() gave"
            )
        total = checks.positive_semidefinite(state["sum"], "sum")
        if total.shape != self.sum.shape:
            raise ValueError(
                f"the state has a sum of shape {list(total.shape)}, this correlation is of "
                f"dimension {self.dim}; make it with Correlation({total.shape[-1]})"
            )
        weight = checks.number(state["weight"], "weight", 0.0, sys.float_info.max)
        count = checks.whole(state["count"], "count", 0)
        self.sum, self.weight, self.count = total.to(self.sum), weight, count

    def __repr__(self) -> str:
        return f"Correlation(dim={self.dim}, count={self.count}, weight={self.weight:g})"


def check_batch(samples: Any, weights: Any, dim: int, like: Tensor) -> tuple[Tensor, Tensor | None]:
    """Samples as rows `[n, d]` and weights `[n]`, all finite, on the right device."""
    samples = checks.real_tensor(samples, "samples").detach()
    if samples.ndim < 2 or samples.shape[-1] != dim:
        raise ValueError(
            f"samples must have shape [..., n, {dim}], got {list(samples.shape)}; a single sample "
            f"needs a row axis: samples[None]"
        )
    if samples.device != like.device:
        raise ValueError(
            f"samples are on {samples.device}, the running sum is on {like.device}; move the "
            f"samples, or make the sum with device={str(samples.device)!r}"
        )
    rows = checks.finite(samples, "samples").reshape(-1, dim)
    if weights is None:
        return rows, None
    weights = checks.finite(checks.real_tensor(weights, "weights").detach(), "weights")
    if weights.shape != samples.shape[:-1] or weights.device != samples.device:
        raise ValueError(
            f"weights of shape {list(weights.shape)} on {weights.device} do not fit samples of "
            f"shape {list(samples.shape)} on {samples.device}: one weight a sample is needed"
        )
    if weights.numel() and float(weights.amin()) < 0:
        raise ValueError(f"weights must not be negative, got {float(weights.amin())}")
    return rows, weights.reshape(-1)


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
        raise ValueError("cannot merge a running sum with itself: everything would count twice")
    if a.dim != b.dim:
        raise ValueError(f"cannot merge second moments of dimension {b.dim} into {a.dim}")
