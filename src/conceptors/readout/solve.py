"""Ridge regression from sums, and its regularization without tuning.

With R = Σ b bᵀ / n and K = Σ y bᵀ / n over all n samples, W = K (R + λ I)⁻¹ minimises
E|y - W b|² + λ |W|². With λ = α⁻², each direction is used as far as the conceptor
C = R (R + α⁻² I)⁻¹ includes it.

A chosen λ minimises generalised cross-validation (Golub, Heath & Wahba 1979),

    GCV(λ) = E|y - W b|² / (1 - tr C / n)²,

an estimate of the squared error on new samples that needs only the sums: no sample is held out.

Where only the largest output counts, GCV shrinks too much, because shrinking all outputs alike
changes no comparison. So λ is multiplied by the share M = E[y · ŷ] / E|y|² of the targets that
predictions ŷ = W b - h / (1 - h) (y - W b) of new samples retain, with h = tr C / n.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from conceptors._internal.precision import exactly
from conceptors.readout.sums import Sums

_START = -2  # the search begins at this power of ten, relative to the mean of R's diagonal
_LARGEST = 4
_PROBES = 32  # random vectors for a trace
_EXACT = 512  # columns up to which a trace is exact
_ROUNDING = 1e-13  # of an error, relative to the targets' squares
_SHARE, _SHARE_OF_LABELS = 0.999, 0.8  # largest h at which GCV is trusted
_HELPFUL = 0.95  # largest ratio of errors at which more columns are used
_LEAST_RETAINED = 0.01  # lower limit of M
_SHRINKAGE = 0.3  # of a class covariance, relative to the mean variance of scores
_NEVER = -1e4  # log-likelihood of a class that was never seen


class Solution(NamedTuple):
    """Weights W `[m, d]`, their λ, and the share tr C / d of the space that the data use.

    `uses_all` is False if only the first part of `SideBySide` helps: the other weights are 0.
    """

    weights: Tensor
    regularization: float
    quota: float
    uses_all: bool = True


class _Trial(NamedTuple):
    """A solution, and estimates of its predictions of new samples."""

    solution: Solution
    errors: Tensor  # E(y - ŷ)² of each output
    retained: float  # M
    share: float  # h


@exactly()
def solve(
    sums: Sums,
    regularization: float | None = None,
    *,
    around_mean: bool = False,
    largest: bool = False,
    first: int = 0,
) -> Solution:
    """Ridge regression on all samples of the sums.

    Args:
        regularization: λ, or None to choose it.
        around_mean: subtract the mean of the targets first and add it to the last weight, so λ
            does not pull targets towards 0. Rows must end in 1.
        largest: only which output is the largest counts, as for classes.
        first: number of leading columns that may do without the others, if rows end in 1. The
            others get weights only if they lower the error that GCV estimates by 5 %. The layers
            of a network look too good on the classes that trained it. So errors are compared
            output by output, and the upper quartile of their ratios decides.

    Raises:
        ValueError: λ is below the rounding error of the sums.
    """
    if around_mean:
        mean = sums.cross[:, -1] / sums.count
        cross = sums.cross - mean[:, None] * sums.gram[-1]
        squares = (sums.squares - sums.count * mean.square()).clamp_min(0)
        centred = sums.with_targets(cross, squares)
        solution = solve(centred, regularization, largest=largest, first=first)
        solution.weights[:, -1] += mean
        return solution
    trial = _solved(sums, regularization, largest)
    if not 0 < first < sums.dim - 1:
        return trial.solution
    columns = torch.tensor([*range(first), sums.dim - 1], device=sums.cross.device)
    alone = _solved(sums.columns(columns), regularization, largest)
    ratios = (trial.errors / alone.errors)[sums.squares > 0]
    if len(ratios) and float(ratios.quantile(0.75)) < _HELPFUL:
        return trial.solution
    weights = torch.zeros_like(sums.cross)
    weights[:, columns] = alone.solution.weights
    quota = alone.solution.quota * len(columns) / sums.dim
    return Solution(weights, alone.solution.regularization, quota, uses_all=False)


def _solved(sums: Sums, regularization: float | None, largest: bool) -> _Trial:
    """The solution on all columns."""
    if regularization is None:
        return _chosen(sums, largest)
    trial = _try(sums, regularization)
    if trial is None:
        raise ValueError(
            f"regularization {regularization:g} is below the rounding error for inputs whose mean "
            f"square is {_mean_square(sums):.3g}; raise it, scale the inputs, or use 'auto'"
        )
    return trial


def _chosen(sums: Sums, largest: bool) -> _Trial:
    """Downhill to the next minimum of GCV in steps of ten, then one step of half that."""
    size = _mean_square(sums)
    if size <= 0:
        raise ValueError("all inputs are zero, so nothing can be learned; check the features")
    least = math.ceil(math.log10(max(16 * sums.eps, 1e-12)))
    most = _SHARE_OF_LABELS if largest else _SHARE
    trials: dict[float, _Trial | None] = {}

    def error(exponent: float) -> float:
        if exponent not in trials:
            trials[exponent] = _try(sums, size * 10.0**exponent)
        trial = trials[exponent]
        return math.inf if trial is None or trial.share > most else float(trial.errors.sum())

    best = float(min(max(_START, least), _LARGEST))
    while math.isinf(error(best)) and best < _LARGEST:
        best += 1
    for step in (-1.0, 1.0):
        while least <= best + step <= _LARGEST and error(best + step) < error(best):
            best += step
    best = min((e for e in (best, best - 0.5, best + 0.5) if e >= least), key=error)
    trial = trials[best]
    if trial is None:
        raise ValueError(
            "the inputs differ too much in size, so ridge regression has no stable solution; "
            "standardize the columns"
        )
    errors = trial.errors
    if largest:
        less = trial.solution.regularization * min(max(trial.retained, _LEAST_RETAINED), 1.0)
        trial = _try(sums, max(less, size * 10.0**least)) or trial
    return trial._replace(errors=errors)


def _try(sums: Sums, regularization: float) -> _Trial | None:
    """The solution; None if R + λ I is not positive definite in float64."""
    n, dim = sums.count, sums.dim
    raised = sums.gram.clone()
    raised.diagonal().add_(n * regularization)
    factor, info = torch.linalg.cholesky_ex(raised)
    del raised  # large
    if int(info):
        return None
    # Two triangular solves, because torch.cholesky_solve copies the factor.
    halfway = torch.linalg.solve_triangular(factor, sums.cross.mT, upper=False)
    weights = torch.linalg.solve_triangular(factor.mT, halfway, upper=True).mT.contiguous()
    if not bool(weights.isfinite().all()):
        return None
    fitted = dim - n * regularization * _inverse_trace(factor)  # tr C
    fitted = min(max(fitted, 0.0), dim)
    along = (weights * sums.cross).sum(1)
    errors = sums.squares - along - n * regularization * weights.square().sum(1)
    # Smaller errors are rounding, which must not decide where the data are fitted exactly.
    errors = torch.maximum(errors, max(sums.eps, _ROUNDING) * sums.squares)
    share = fitted / n
    left = max(1 - share, 1e-12)
    retained = 1 - (1 - float(along.sum()) / max(float(sums.squares.sum()), 1e-300)) / left
    solution = Solution(weights, regularization, fitted / dim)
    return _Trial(solution, errors / n / left**2, retained, share)


def _inverse_trace(factor: Tensor) -> float:
    """tr (L Lᵀ)⁻¹ = |L⁻¹|², from random vectors if there are many columns (Hutchinson 1989)."""
    dim = len(factor)
    if dim <= _EXACT:
        probes = torch.eye(dim, dtype=factor.dtype, device=factor.device)
    else:
        draw = torch.Generator().manual_seed(dim)
        signs = torch.randint(2, (dim, _PROBES), generator=draw).to(factor)
        probes = (2 * signs - 1) / _PROBES**0.5
    solved: Tensor = torch.linalg.solve_triangular(factor, probes, upper=False)
    return float(solved.square().sum())


def _mean_square(sums: Sums) -> float:
    """The mean of R's diagonal."""
    return float(sums.gram.diagonal().mean()) / max(sums.count, 1e-300)


@exactly()
def likelihoods(sums: Sums, solution: Solution, shrinkage: float = _SHRINKAGE) -> Tensor:
    """Weights `[m, d]` of rows b that end in 1, to log-likelihoods of m classes.

    Linear discriminant analysis of the scores f = W b, by optimal scoring (Hastie, Buja &
    Tibshirani 1995): M'_kᵀ S'⁻¹ f - M'_kᵀ S'⁻¹ M'_k / 2 + log p_k, up to what all classes share.
    f has mean M_k over class k and, pooled over classes, covariance S. For new samples, with
    h = tr C / n, M' = (M - h I) / (1 - h) and S' = S / (1 - h)², shrunk to a multiple of I.
    """
    weights, n = solution.weights, sums.count
    seen = sums.squares > 0
    if int(seen.sum()) < 2:
        return weights
    W, counts = weights[seen], sums.squares[seen]
    left = max(1 - solution.quota * sums.dim / n, 0.05)
    means = (sums.cross[seen] / counts[:, None]) @ W.mT  # [class, score]
    within = W @ (sums.gram @ W.mT) / n - (means.mT * (counts / n)) @ means
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    means = (means - (1 - left) * eye) / left
    within = (within + within.mT) / (2 * left**2)
    within += eye * within.diagonal().mean().clamp_min(1e-12) * shrinkage
    directions = torch.linalg.solve(within, means.mT).mT  # M' S'⁻¹
    discriminants = directions @ W
    discriminants[:, -1] += (counts / n).log() - (directions * means).sum(1) / 2
    likelihood_weights = torch.zeros_like(weights)
    likelihood_weights[seen] = discriminants
    likelihood_weights[~seen, -1] = _NEVER
    return likelihood_weights
