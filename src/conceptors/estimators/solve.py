"""Ridge regression from sums, and its regularization without tuning.

With R = Σ b bᵀ / n and K = Σ y bᵀ / n over all n samples, W = K (R + λ I)⁻¹ minimises
E|y - W b|² + λ |W|². With λ = α⁻², K R⁻¹ (I - F) is the same: each direction is used as far as the
conceptor C = R (R + α⁻² I)⁻¹ claims it.

λ = "auto" minimises generalised cross-validation (Golub, Heath & Wahba 1979),

    GCV(λ) = E|y - W b|² / (1 - tr C / n)²,

an estimate of the squared error on new samples, made of the same sums: no sample is held out.

Where only the largest output counts, that is too much: the noisier the data, the more squared
error asks to shrink all outputs alike, which changes none of the comparisons. So λ is multiplied by
the share M of the targets that predictions of new samples keep, E[y · ŷ] / E|y|², estimated by the
same leave-one-out formula, ŷ = W b - h / (1 - h) (y - W b) with h = tr C / n.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import NamedTuple

import torch
from torch import Tensor

from conceptors._internal.precision import exactly
from conceptors.estimators.sums import Sums

_START = -2  # exponent of ten that the search begins with, relative to the mean of R's diagonal;
# always the same, so that λ depends on the sums alone and not on what was solved before
_LARGEST = 4
_PROBES = 32  # random vectors for a trace
_EXACT = 512  # columns up to which a trace is exact
_ROUNDING = 1e-13  # of an error, relative to the targets' squares
_SHARE, _SHARE_OF_LABELS = 0.999, 0.8  # of all samples, that h may be; GCV fails beyond
_LEAST = 0.01  # that M may be


class Solution(NamedTuple):
    """Weights W `[m, d]`, the λ they were made with, and what it leaves of the space."""

    weights: Tensor
    regularization: float
    quota: float  # tr C / d, estimated for more than 512 columns

    @property
    def aperture(self) -> float:
        return 1 / math.sqrt(self.regularization)


@exactly()
def solve(
    sums: Sums,
    regularization: float | None = None,
    *,
    around_mean: bool = False,
    largest: bool = False,
) -> Solution:
    """Ridge regression on all samples of the sums.

    Args:
        regularization: λ, None to choose it.
        around_mean: rows end in 1, and targets are taken less their mean, which the last weight
            gives back: else λ would draw targets that are far from 0 towards 0.
        largest: only which output is the largest counts, as for classes.

    Raises:
        ValueError: λ is below what rounding leaves of the sums.
    """
    sums.check()
    if around_mean:
        mean = sums.cross[:, -1] / sums.count
        found = solve(_less(sums, mean), regularization, largest=largest)
        found.weights[:, -1] += mean
        return found
    if regularization is None:
        return _chosen(sums, largest)
    solved = _solved(sums, regularization)
    if solved is None:
        raise ValueError(
            f"regularization {regularization:g} is too small for inputs whose mean square is "
            f"{_size(sums):.3g}; raise it, scale the inputs, or let it be chosen"
        )
    return solved.solution


def _less(sums: Sums, mean: Tensor) -> Sums:
    """The sums if this had been taken off all targets; Σ b bᵀ is shared."""
    made = Sums(0)
    made.gram, made.count, made.eps = sums.gram, sums.count, sums.eps
    made.cross = sums.cross - mean[:, None] * sums.gram[-1]
    made.squares = (sums.squares - sums.count * mean.square()).clamp_min(0)
    return made


class _Tried(NamedTuple):
    """A solution, and what is estimated of its predictions of new samples."""

    solution: Solution
    error: float  # E|y - ŷ|²
    kept: float  # M
    share: float  # h


def _chosen(sums: Sums, largest: bool) -> Solution:
    """Downhill to the next minimum of GCV: λ ten times apart, then half of that."""
    size = _size(sums)
    if size <= 0:
        raise ValueError("all inputs are zero; nothing can be learned from them")
    least = math.ceil(math.log10(max(16 * sums.eps, 1e-12)))
    most = _SHARE_OF_LABELS if largest else _SHARE
    seen: dict[float, _Tried | None] = {}

    def at(exponent: float) -> float:
        if exponent not in seen:
            seen[exponent] = _solved(sums, size * 10.0**exponent)
        found = seen[exponent]
        return math.inf if found is None or found.share > most else found.error

    best = float(min(max(_START, least), _LARGEST))
    while math.isinf(at(best)) and best < _LARGEST:
        best += 1
    for step in (-1.0, 1.0):
        while least <= best + step <= _LARGEST and at(best + step) < at(best):
            best += step
    best = min((e for e in (best, best - 0.5, best + 0.5) if e >= least), key=at)
    found = seen[best]
    if found is None:
        raise ValueError(
            f"sums of {sums.count:g} samples with mean square {size:.3g} cannot be solved; their "
            f"inputs differ too much in size"
        )
    if largest:
        less = found.solution.regularization * min(max(found.kept, _LEAST), 1.0)
        found = _solved(sums, max(less, size * 10.0**least)) or found
    return found.solution


def _solved(sums: Sums, regularization: float) -> _Tried | None:
    """The solution; None if the sums are no positive definite matrix for this λ."""
    n, dim = sums.count, sums.dim
    with _raised(sums.gram, n * regularization) as raised:
        factor, info = torch.linalg.cholesky_ex(raised)
    if int(info):
        return None
    # torch.cholesky_solve would copy the factor
    halfway = torch.linalg.solve_triangular(factor, sums.cross.mT, upper=False)
    weights = torch.linalg.solve_triangular(factor.mT, halfway, upper=True).mT.contiguous()
    if not bool(weights.isfinite().all()):
        return None
    fitted = dim - n * regularization * _inverse_trace(factor)  # tr C
    fitted = min(max(fitted, 0.0), dim)
    targets, along = float(sums.squares.sum()), float((weights * sums.cross).sum())
    error = targets - along - n * regularization * float(weights.square().sum())
    # Below this it is rounding, which must not decide where the data are fitted exactly.
    error = max(error, max(sums.eps, _ROUNDING) * targets)
    share = fitted / n
    left = max(1 - share, 1e-12)
    kept = 1 - (1 - along / max(targets, 1e-300)) / left
    return _Tried(Solution(weights, regularization, fitted / dim), error / n / left**2, kept, share)


_ONE_AT_A_TIME = RLock()  # threads that predict with the same readout may all come to solve it


@contextmanager
def _raised(gram: Tensor, amount: float) -> Iterator[Tensor]:
    """The matrix with something added to its diagonal, in place: another one may not fit."""
    with _ONE_AT_A_TIME:
        diagonal = gram.diagonal()
        before = diagonal.clone()
        try:
            diagonal.add_(amount)
            yield gram
        finally:
            diagonal.copy_(before)


def _inverse_trace(factor: Tensor) -> float:
    """tr (L Lᵀ)⁻¹ = |L⁻¹|², from random vectors for many columns (Hutchinson 1989)."""
    dim = len(factor)
    if dim <= _EXACT:
        probes = torch.eye(dim, dtype=factor.dtype, device=factor.device)
    else:
        draw = torch.Generator().manual_seed(dim)
        signs = torch.randint(2, (dim, _PROBES), generator=draw).to(factor)
        probes = (2 * signs - 1) / _PROBES**0.5
    solved: Tensor = torch.linalg.solve_triangular(factor, probes, upper=False)
    return float(solved.square().sum())


def _size(sums: Sums) -> float:
    """The mean of R's diagonal."""
    return float(sums.gram.diagonal().mean()) / max(sums.count, 1e-300)
