"""Ridge regression of tasks from second moments: all at once, or in turn.

In turn is section 2.2 of the paper. With R = E[x xᵀ] and K = E[y xᵀ] of the new task, W the
weights so far and F = ¬A the space that earlier tasks left free, T = Y - W X and S = F X have
S Sᵀ/n = F R F and T Sᵀ/n = (K - W R) F. So one pass over the data is enough, whatever its size,
and no sample is stored.
"""

import copy
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.algebra import spectrum as spectra
from conceptors.readout.solve import solve
from conceptors.readout.sums import Sums

_VARIATION = 1e-13  # of inputs relative to their squares, below which it is rounding


@dataclass(frozen=True)
class Known:
    """A linear model, and the space that its tasks use; b `[d]` is x, or [x; 1]."""

    weights: Tensor  # W [m, d], outputs in the order in which they came
    correlation: Tensor  # R [d, d] that the aperture refers to
    aperture: float
    regularization: float

    @property
    def quota(self) -> float:
        """tr C / d."""
        return float(1 - free_space(self.correlation, self.aperture).diagonal().mean())


@dataclass(frozen=True)
class Joint:
    """Ridge regression on all samples of the sums, W = K (R + λ I)⁻¹, solved on first use.

    Attributes:
        regularization: λ, or None to choose it.
        constant: whether rows b end in a constant 1.
        of_classes: whether outputs are scores of classes, of which only the largest matters.
        scaled: whether a chosen λ refers to inputs of mean 0 and mean square 1 over all tasks.
    """

    sums: Sums
    regularization: float | None
    constant: bool
    of_classes: bool
    scaled: bool

    @cached_property
    def known(self) -> Known:
        total, given = copy.deepcopy(self.sums), self.regularization
        d = total.dim - self.constant
        shift, scale = torch.zeros(d, dtype=torch.float64), 1.0
        if self.scaled and given is None:
            shift, scale = _standardise(total, self.constant)
        around_mean = self.constant and (given is None or not self.scaled)
        if given is None and not bool(total.gram.any()):
            given = 1.0  # any λ gives W = 0
        weights, used, *_ = solve(total, given, around_mean=around_mean, largest=self.of_classes)
        weights[:, :d] *= scale
        if self.constant:
            weights[:, -1] -= weights[:, :d] @ shift
        return Known(weights, total.gram / total.count, used**-0.5, used)


def _standardise(sums: Sums, constant: bool) -> tuple[Tensor, float]:
    """Change sums over [x; 1] to z = t (x - m) with mean 0 and mean square 1; returns m and t."""
    G, K, d = sums.gram, sums.cross, sums.dim - constant
    squares = G.diagonal()[:d].clone() / sums.count
    mean = torch.zeros_like(squares)
    if constant:
        mean = G[-1, :-1] / sums.count
        G[:-1, :-1] -= torch.outer(mean, mean) * sums.count
        G[-1, :-1] = G[:-1, -1] = 0
        K[:, :-1] -= torch.outer(K[:, -1], mean)
    size = float((squares - mean.square()).mean())
    if size <= _VARIATION * float(squares.mean()):  # constant inputs
        size = float(squares.mean()) or 1.0
        G[:d, :d] = 0
    scale = size**-0.5
    G[:d] *= scale
    G[:, :d] *= scale
    K[:, :d] *= scale
    return mean, scale


def earlier(before: Known | None, outputs: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return W `[m, d]` and ΣR `[d, d]` of the earlier tasks; outputs beyond theirs are new."""
    if before is None:
        return torch.zeros(outputs, dim).double(), torch.zeros(dim, dim).double()
    missing = outputs - len(before.weights)
    return functional.pad(before.weights, (0, 0, 0, missing)), before.correlation


def free_space(correlation: Tensor, aperture: float) -> Tensor:
    """F = ¬A = α⁻² (ΣR + α⁻² I)⁻¹ `[d, d]`, with ΣR summed over the tasks so far.

    Raises:
        ValueError: α² ΣR overflows.
    """
    odds = aperture * aperture * correlation
    if not bool(torch.isfinite(odds).all()):
        raise ValueError(
            f"aperture {aperture:g} is too large for inputs whose mean square is "
            f"{_mean_square(correlation):.3g}: aperture² · E[x xᵀ] overflows; lower it, or scale "
            f"the inputs"
        )
    eye = torch.eye(len(odds), dtype=odds.dtype, device=odds.device)
    factor, info = torch.linalg.cholesky_ex(eye + odds)
    if int(info):  # negative eigenvalues of rounding size at a huge aperture
        return spectra.to_matrix(spectra.negate(spectra.from_odds_matrix(odds)))
    return torch.cholesky_inverse(factor)


def increment(
    correlation: Tensor, cross: Tensor, weights: Tensor, free: Tensor, regularization: float
) -> Tensor:
    """W_inc = (K - W R) F (F R F + λ⁻² I)⁻¹ `[m, d]`: step 3 (d), `regularization` is λ⁻².

    It minimises E|W_inc s - t|² + λ⁻² |W_inc|², with s = F x and t = y - W x.

    Raises:
        ValueError: λ⁻² is below the rounding error of F R F, which leaves W_inc undetermined.
    """
    eye = torch.eye(len(free), dtype=free.dtype, device=free.device)
    normal = free @ correlation @ free + regularization * eye
    factor, info = torch.linalg.cholesky_ex((normal + normal.mT) / 2)
    if int(info):
        raise ValueError(
            f"regularization {regularization:g} is too small for inputs whose mean square is "
            f"{_mean_square(correlation):.3g}; raise it, or scale the inputs"
        )
    return torch.cholesky_solve(free @ (cross - weights @ correlation).mT, factor).mT


def simplified_increment(
    correlation: Tensor, cross: Tensor, weights: Tensor, free: Tensor, regularization: float
) -> Tensor:
    """W_inc = (K - W R) F (R F + λ⁻² I)⁻¹: where the paper's simplified gradient vanishes.

    The simplification drops W_inc A x from the error. Its fixed point therefore fits W x itself
    to y, not W_inc F x to y - W x; both agree where F is a hard projector.
    """
    eye = torch.eye(len(free), dtype=free.dtype, device=free.device)
    normal = correlation @ free + regularization * eye
    right = (cross - weights @ correlation) @ free
    solved: Tensor = torch.linalg.solve(normal, right, left=False)
    return solved


def _mean_square(correlation: Tensor) -> float:
    return float(correlation.diagonal().mean())
