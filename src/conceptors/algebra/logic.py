"""Two conceptors: AND, OR, order and similarity of spectra."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conceptors.algebra.spectrum import (
    Spectrum,
    cast,
    items_of,
    negate,
    orthonormalised,
    snap,
    stack,
    to_matrix,
    tolerance,
    value_of_rest,
    values_of,
    work_dtype,
)


def conjoin(a: Spectrum, b: Spectrum) -> Spectrum:
    """A ∧ B, exact also for singular values of 0 and 1.

    With the parallel sum P = A (A + B)⁺ B, whose range is the intersection of both ranges,
    A ∧ B = P (I - P)⁻¹. All matrices are bounded (0 <= P <= I/2), so nothing is inverted that
    may be singular except A + B, by its pseudo-inverse. For invertible A, B this is
    (A⁻¹ + B⁻¹ - I)⁻¹; for hard projectors it is the projector on the intersection.
    """
    batch = torch.Size(torch.broadcast_shapes(a.odds.shape[:-1], b.odds.shape[:-1]))
    for one, other in ((a, b), (b, a)):
        if one.rank == 0 and math.isinf(one.rest) and other.odds.shape[:-1] == batch:
            return other  # I ∧ C = C, to the last bit
    dtype, tol = a.vectors.dtype, tolerance(a.dim, a.vectors.dtype)
    a, b = _widen(a), _widen(b)
    if a.rank + b.rank >= a.dim:
        return cast(_conjoin_matrices(to_matrix(a), to_matrix(b), tol), dtype)
    if not batch:
        return cast(_conjoin_factored(a, b, tol), dtype)
    pairs = zip(items_of(a, batch), items_of(b, batch))
    return cast(stack([_conjoin_factored(x, y, tol) for x, y in pairs], batch), dtype)


def disjoin(a: Spectrum, b: Spectrum) -> Spectrum:
    """A ∨ B = ¬(¬A ∧ ¬B)."""
    return negate(conjoin(negate(a), negate(b)))


def similarity(a: Spectrum, b: Spectrum) -> Tensor:
    """ρ = tr(A B) / (‖A‖ ‖B‖) in [0, 1]; 0 where either is the zero conceptor."""
    rest_a, rest_b = value_of_rest(a), value_of_rest(b)
    values_a, values_b = _relative_values(a), _relative_values(b)
    over_a, over_b = values_a - rest_a, values_b - rest_b
    cosines = (a.vectors.mT @ b.vectors).square()
    shared = (over_a.unsqueeze(-2) @ cosines @ over_b.unsqueeze(-1)).squeeze(-1).squeeze(-1)
    shared = shared + rest_a * over_b.sum(-1) + rest_b * over_a.sum(-1) + rest_a * rest_b * a.dim
    norm_a = (values_a.square().sum(-1) + rest_a * (a.dim - a.rank)).sqrt()
    norm_b = (values_b.square().sum(-1) + rest_b * (b.dim - b.rank)).sqrt()
    return _ratio(shared, norm_a, norm_b, a.dim)


def similarity_of_matrices(a: Tensor, b: Tensor) -> Tensor:
    """ρ of dense conceptor matrices `[..., d, d]`, without their spectra."""
    tiny = torch.finfo(a.dtype).tiny  # ρ does not depend on scale, and squares may underflow
    a = a / a.abs().amax((-2, -1), keepdim=True).clamp_min(tiny)
    b = b / b.abs().amax((-2, -1), keepdim=True).clamp_min(tiny)
    norms = (torch.linalg.matrix_norm(a), torch.linalg.matrix_norm(b))
    return _ratio((a * b).sum((-2, -1)), *norms, a.shape[-1])


def _relative_values(spectrum: Spectrum) -> Tensor:
    """Singular values divided by the largest of all, so that their squares do not underflow."""
    values = values_of(spectrum.odds)
    if not spectrum.rank or value_of_rest(spectrum):
        return values
    return values / values.amax(-1, keepdim=True).clamp_min(torch.finfo(values.dtype).tiny)


def _ratio(shared: Tensor, norm_a: Tensor, norm_b: Tensor, dim: int) -> Tensor:
    """shared / (norm_a norm_b), clamped to [0, 1]; 0 / 0 is 0."""
    product = norm_a * norm_b
    rho = torch.where(product > 0, shared / product, 0.0)
    return snap(rho, tolerance(dim, shared.dtype))


def precedes(a: Spectrum, b: Spectrum) -> Tensor:
    """Whether A <= B, that is, B - A has no negative eigenvalue (up to the tolerance)."""
    tol = tolerance(a.dim, a.vectors.dtype)
    a, b = _widen(a), _widen(b)
    if a.rank + b.rank >= a.dim:
        gap = to_matrix(b) - to_matrix(a)
        above: Tensor = torch.linalg.eigvalsh(gap).amin(-1) >= -4 * tol
        return above
    batch = torch.Size(torch.broadcast_shapes(a.odds.shape[:-1], b.odds.shape[:-1]))
    found = []
    for x, y in zip(items_of(a, batch), items_of(b, batch)):
        outside = joint_complement(x.vectors, y.vectors, tol)
        gap = _compress(y, x.vectors, outside) - _compress(x, x.vectors, outside)
        low = float(torch.linalg.eigvalsh(gap).amin()) if gap.numel() else 0.0
        found.append(low >= -4 * tol and x.rest <= y.rest)
    return torch.tensor(found, device=a.vectors.device).reshape(batch)


def joint_complement(u: Tensor, v: Tensor, tol: float) -> Tensor:
    """Orthonormal basis `[d, k]` of what the columns of v add to the span of the columns of u.

    Directions of v within `tol` of span(u) add nothing. At most 3 d r numbers are held.
    """
    basis, triangle = torch.linalg.qr(torch.addmm(v, u, u.mT @ v, alpha=-1))
    left, sines, _ = torch.linalg.svd(triangle)
    basis = basis @ left[:, sines > tol]
    basis.addmm_(u, u.mT @ basis, alpha=-1)  # directions of tiny sine need it again
    orthonormal: Tensor = torch.linalg.qr(basis).Q if basis.shape[1] else basis
    return orthonormal


def _conjoin_matrices(a: Tensor, b: Tensor, tol: float) -> Spectrum:
    """A ∧ B of dense conceptor matrices `[..., d, d]`."""
    sums, vectors = torch.linalg.eigh(a + b)
    inverse = torch.where(sums > tol, 1 / sums, 0.0)
    parallel = (a @ (vectors * inverse.unsqueeze(-2))) @ (vectors.mT @ b)
    values, vectors = torch.linalg.eigh((parallel + parallel.mT) / 2)
    odds = torch.where(1 - 2 * values > tol, values / (1 - 2 * values), torch.inf)
    return Spectrum(vectors, torch.where(values > tol, odds, 0.0))


def _conjoin_factored(a: Spectrum, b: Spectrum, tol: float) -> Spectrum:
    """A ∧ B of two spectra without batch, in the span of their directions."""
    outside = joint_complement(a.vectors, b.vectors, tol)
    small = _conjoin_matrices(
        _compress(a, a.vectors, outside), _compress(b, a.vectors, outside), tol
    )
    rest = min(a.rest, b.rest)
    kept = small.odds != rest
    turn = small.vectors[:, kept]
    vectors = a.vectors @ turn[: a.rank]
    vectors.addmm_(outside, turn[a.rank :])
    return Spectrum(vectors, small.odds[kept], rest)


def _compress(spectrum: Spectrum, inside: Tensor, outside: Tensor) -> Tensor:
    """The conceptor matrix within the span of the columns of `inside` and `outside`."""
    rest = value_of_rest(spectrum)
    u = torch.cat([inside.mT @ spectrum.vectors, outside.mT @ spectrum.vectors])
    matrix = (u * (values_of(spectrum.odds) - rest)) @ u.mT
    matrix.diagonal().add_(rest)
    return matrix


def _widen(spectrum: Spectrum) -> Spectrum:
    """In the dtype of factorisations, its directions orthonormal to rounding there."""
    dtype = work_dtype(spectrum.vectors)
    if spectrum.vectors.dtype == dtype:
        return spectrum
    wide = cast(spectrum, dtype)
    return wide._replace(vectors=orthonormalised(wide.vectors))
