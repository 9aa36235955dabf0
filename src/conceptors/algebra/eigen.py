"""The leading eigenvectors of large symmetric matrices, without all the others.

Products with the matrix do most of the work, which is what GPUs are fast at; a full `eigh` of a
4608 x 4608 matrix there takes as long as a hundred such products with a thin block.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALL = 512  # below, eigh is as fast
_WARM_UP = 2  # plain power steps, before the spectrum is known at all
_ROUNDS = 2  # of filtering; one is enough where the spectrum falls at all
_DEGREE = 32  # products a round, at most
_ROUNDING = 2e-14  # of the largest eigenvalue
_GAIN = 1e8  # by which one filter may spread columns before they are made orthonormal again


def thin(rank: int, dim: int) -> bool:
    """Whether `leading` finds `rank` of `dim` directions faster than eigh all."""
    return dim >= SMALL and 4 * rank <= dim


def leading(matrix: Tensor, rank: int, negligible: float = 0.0) -> tuple[Tensor, Tensor]:
    """The `rank` largest eigenvalues `[..., r]`, descending, and eigenvectors `[..., d, r]`.

    For positive semi-definite matrices `[..., d, d]`. Where `thin` says so, by subspace iteration
    with Chebyshev filters on somewhat more columns than asked for, and Rayleigh-Ritz. It ends when
    all residuals |A x - θ x| are at most 1e-4 of the smallest eigenvalue asked for (or rounding, or
    `negligible`), or after some sixty products; by then directions are mixed only with those of
    nearly the same eigenvalue. The same matrix gives the same result. Else by eigh.

    >>> import torch
    >>> values, vectors = leading(torch.diag(torch.tensor([1.0, 4.0, 2.0])), 2)
    >>> values, vectors.abs()
    (tensor([4., 2.]), tensor([[0., 0.],
            [1., 0.],
            [0., 1.]]))
    """
    dim = matrix.shape[-1]
    if not thin(rank, dim):
        values, vectors = torch.linalg.eigh(matrix)
        return values[..., dim - rank :].flip(-1), vectors[..., dim - rank :].flip(-1)
    width = rank + max(32, rank // 4)
    generator = torch.Generator(matrix.device).manual_seed(dim)
    start = torch.randn(dim, width, generator=generator, dtype=matrix.dtype, device=matrix.device)
    block = start.expand(*matrix.shape[:-2], dim, width)
    for _ in range(_WARM_UP):
        block = orthonormal(matrix @ block)
    values, block, image = _ritz(matrix, block)
    for _ in range(_ROUNDS):
        excess = _excess(values, block, image, rank, negligible)
        if not bool((excess > 1).any()):
            break
        block = _filtered(matrix, values, block, image, rank, excess)
        values, block, image = _ritz(matrix, block)
    return values[..., :rank].clamp_min(0), block[..., :rank].contiguous()


def orthonormal(block: Tensor) -> Tensor:
    """An orthonormal basis of the columns `[..., d, k]`, filled up where they are dependent.

    Cholesky-QR twice, in products only; Householder's QR where the columns are (nearly) dependent.
    """
    scale = torch.linalg.vector_norm(block, dim=-2, keepdim=True)
    once, first = _cholesky_qr(block / scale.clamp_min(torch.finfo(block.dtype).tiny))
    twice, second = _cholesky_qr(once)
    failed = first | second
    if bool(failed.any()):
        twice = twice.clone()
        twice[failed] = torch.linalg.qr(block[failed]).Q
    return twice


def _cholesky_qr(block: Tensor) -> tuple[Tensor, Tensor]:
    """(X L⁻ᵀ with L Lᵀ = Xᵀ X, whether that went wrong `[...]`)."""
    lower, info = torch.linalg.cholesky_ex(block.mT @ block)
    diagonal = lower.diagonal(dim1=-2, dim2=-1)
    limit = math.sqrt(torch.finfo(block.dtype).eps)  # beyond, the second pass cannot mend it
    wrong = (info != 0) | ~(diagonal.amin(-1) > 4 * limit * diagonal.amax(-1))
    basis = torch.linalg.solve_triangular(lower, block.mT, upper=False).mT
    return basis, wrong


def _ritz(matrix: Tensor, block: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(θ descending, the Ritz vectors X, A X) in the span of an orthonormal block."""
    image = matrix @ block
    small = block.mT @ image
    values, turn = torch.linalg.eigh((small + small.mT) / 2)
    values, turn = values.flip(-1), turn.flip(-1)
    return values, block @ turn, image @ turn


def _excess(values: Tensor, block: Tensor, image: Tensor, rank: int, negligible: float) -> Tensor:
    """How many times larger than allowed `[...]` residuals of the first `rank` Ritz pairs are."""
    if not rank:
        return torch.zeros_like(values[..., 0])
    theta = values[..., :rank]
    residual = image[..., :rank] - block[..., :rank] * theta.unsqueeze(-2)
    size = torch.linalg.vector_norm(residual, dim=-2)
    allowed = torch.maximum(1e-4 * theta[..., -1:], _ROUNDING * theta[..., :1])
    least = max(negligible, torch.finfo(values.dtype).tiny)
    worst: Tensor = (size / allowed.clamp_min(least)).amax(-1)
    return worst


def _filtered(
    matrix: Tensor, values: Tensor, block: Tensor, image: Tensor, rank: int, excess: Tensor
) -> Tensor:
    """The block with what lies below its smallest Ritz value b damped `excess` times, orthonormal.

    Chebyshev polynomials of (2 A - b) / b stay within ±1 on [0, b] and grow fast beyond, by
    ρ(λ) = x + √(x² - 1) a degree at x = 2 λ / b - 1. The degree between two orthonormalisations is
    so low that the largest eigenvalue does not drown the others.
    """
    top, cut = values[..., 0], values[..., rank - 1]
    some = top > 1e-280  # a zero matrix needs no filter, and no bound fits it
    bound = torch.where(some, torch.maximum(values[..., -1], 1e-14 * top), 1.0)
    growth = _growth(cut, bound)
    degrees = (10 * excess).log() / growth.log().clamp_min(1e-3)
    total = max(2, min(_DEGREE, math.ceil(float(degrees[excess > 1].amax()))))
    spread = float((_growth(top, bound) / growth).amax())
    at_once = max(1, min(total, int(math.log(_GAIN) / max(math.log(spread), 1e-3))))
    scale = (2 / bound)[..., None, None]
    done = 0
    while done < total:
        image = matrix @ block if done else image
        before, now = block, scale * image - block
        for _ in range(min(at_once, total - done) - 1):
            before, now = now, 2 * (scale * (matrix @ now) - now) - before
        done += at_once
        block = orthonormal(now)
    return block


def _growth(value: Tensor, bound: Tensor) -> Tensor:
    x = (2 * value / bound - 1).clamp_min(1)
    return x + (x * x - 1).clamp_min(0).sqrt()
