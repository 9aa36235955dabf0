"""Incremental ridge regression by conceptors (section 2.2 of the paper), from second moments.

With R = E[x xᵀ] and K = E[y xᵀ] of the new task, W the weights so far and F = ¬A the space that
earlier tasks left free, T = Y - W X and S = F X have S Sᵀ/n = F R F and T Sᵀ/n = (K - W R) F.
So one pass over the data is enough, whatever its size, and no sample is stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conceptors.algebra import spectrum as spectra


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
