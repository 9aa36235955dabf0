"""Conceptor algebra on spectra: pure functions of tensors.

A conceptor C = U diag(s) Uᵀ is stored as its **odds** o = s / (1 - s), in which all operations are
simple. At aperture α the odds are α² times the eigenvalues σ of the correlation matrix, because
s = σ / (σ + α⁻²) gives o = α² σ, and

    NOT        inverts odds:         o(¬C)      = 1 / o
    aperture   scales odds:          o(φ(C, γ)) = γ² o
    OR         adds odds matrices:   Q(A ∨ B)   = Q(A) + Q(B),   Q = C (I - C)⁻¹

Odds of 0 and infinity stand for singular values of exactly 0 and 1, so repeated NOT and aperture
adaptation lose no information.

A spectrum may store fewer directions than the space has (the factored form). All other directions
have the same odds, `rest`: 0 (the usual case) or infinity (after NOT). All operations preserve this
form, and none creates a d x d matrix.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

LARGE = 1e5  # odds beyond which the rounding of one eigh would show in small singular values
_RESOLVED, _WINDOW = 1e-8, 1e16  # 1 - s that eigh resolves, and the odds that one window covers


class Spectrum(NamedTuple):
    """Orthonormal directions, their odds, and the odds of everything orthogonal to them."""

    vectors: Tensor  # [..., d, r]; columns orthonormal, or zero where a batch is padded
    odds: Tensor  # [..., r], each in [0, inf]
    rest: float = 0.0  # 0 or inf; unused when r = d

    @property
    def dim(self) -> int:
        return self.vectors.shape[-2]

    @property
    def rank(self) -> int:
        return self.vectors.shape[-1]

    @property
    def is_dense(self) -> bool:
        return self.rank == self.dim


def tolerance(size: int, dtype: torch.dtype) -> float:
    """Return the distance from 0 or 1 within which singular values are rounded to 0 or 1.

    4 d eps of float64, in which factorisations are computed, plus 4 √d eps of the dtype in which
    the directions are stored.
    """
    stored, computed = torch.finfo(dtype).eps, torch.finfo(torch.float64).eps
    return 4 * (size * computed + math.sqrt(size) * stored)


def values_of(odds: Tensor) -> Tensor:
    """Singular values s = o / (1 + o) in [0, 1]."""
    return torch.where(torch.isinf(odds), 1.0, odds / (1 + odds))


def value_of_rest(spectrum: Spectrum) -> float:
    """The singular value, 0 or 1, of all directions that the spectrum does not store, if any."""
    return 1.0 if spectrum.rest and not spectrum.is_dense else 0.0


def snap(values: Tensor, tol: float) -> Tensor:
    """Clamp to [0, 1] and round values within `tol` of 0 or 1 to that end."""
    return torch.where(values <= tol, 0.0, torch.where(values >= 1 - tol, 1.0, values))


# --- from data to spectra ----------------------------------------------------------------


def from_odds_matrix(odds: Tensor) -> Spectrum:
    """Spectrum of Q = α² R `[..., d, d]`; eigenvalues of rounding size become 0.

    One eigh is accurate to eps · max Q. For smaller eigenvalues, `graded` takes over.
    """
    if odds.shape[-1] == 1:
        return Spectrum(torch.ones_like(odds), odds.squeeze(-1).clamp_min(0))
    if bool((_diagonal(odds) > LARGE).any()):
        resolved = graded(odds)
        if resolved is not None:
            return resolved
    return from_eigen(*torch.linalg.eigh(odds))


def from_eigen(values: Tensor, vectors: Tensor) -> Spectrum:
    """Spectrum of eigenvalues, ascending, and eigenvectors; values of rounding size become 0."""
    smallest = tolerance(values.shape[-1], values.dtype) * values[..., -1:].clamp_min(0)
    return Spectrum(vectors, torch.where(values > smallest, values, 0.0))


def graded(odds: Tensor) -> Spectrum | None:
    """Spectrum of Q `[..., d, d]` whose columns may have very different scales.

    E = (I + Q / τ)⁻¹ by Cholesky is as accurate as if all columns had the same scale. Its
    eigenvalues e give odds τ (1 - e) / e, to a relative error of 1e-8 for odds within eight
    decades of τ. Larger odds, e ≈ 0, are resolved within their subspace at a larger τ. The result
    is None where Q itself is not accurate enough, see `_complement`.
    """
    if not bool(odds.isfinite().all()):
        return None
    items = [_graded(item) for item in odds.flatten(0, -3)] if odds.ndim > 2 else [_graded(odds)]
    resolved = [item for item in items if item is not None]
    return stack(resolved, odds.shape[:-2]) if len(resolved) == len(items) else None


def _graded(odds: Tensor) -> Spectrum | None:
    scales, noise = odds.diagonal(), tolerance(len(odds), odds.dtype)
    basis = torch.eye(len(odds), dtype=odds.dtype, device=odds.device)
    vectors, values, unit = [], [], 1.0
    while basis.shape[-1]:
        inverse = _complement(odds / unit)
        if inverse is None:
            return None
        share, turn = torch.linalg.eigh(basis.mT @ inverse @ basis)
        share, basis = share.flip(-1), basis @ turn.flip(-1)
        is_last = unit >= _RESOLVED * float(scales.sum())
        count = len(share) if is_last else int((share > _RESOLVED).sum())
        share = share[:count].clamp(torch.finfo(odds.dtype).eps, 1)
        resolved = unit * (1 - share) / share
        rounding = noise * (basis[:, :count].square() * scales.unsqueeze(-1)).sum(0)
        vectors.append(basis[:, :count])
        values.append(torch.where(resolved > rounding.clamp_min(noise * unit), resolved, 0.0))
        basis, unit = basis[:, count:], unit * _WINDOW
    return Spectrum(torch.linalg.qr(torch.cat(vectors, -1)).Q, torch.cat(values))


def occupied(moment: Tensor, rounding: float) -> Spectrum:
    """Return the hard projector onto all directions of R `[..., d, d]` above rounding.

    Columns are scaled to unit size first, R = D K D, because rounding is relative to each column.
    Eigenvectors V of K that explain a share of at most `rounding` of its trace are rounding; the
    directions orthogonal to all others of R are D⁻¹ V. A nearly dead column makes a row of D⁻¹ V so
    large that others vanish beside it, so V is triangular first, with the smallest column on top.
    """
    if moment.shape[-1] == 1:
        odds = torch.where(moment > 0, torch.inf, 0.0).squeeze(-1)
        return Spectrum(torch.ones_like(moment), odds)
    sizes = _diagonal(moment).clamp_min(0).sqrt()
    sizes = torch.where(sizes > 0, sizes, 1.0)
    values, vectors = torch.linalg.eigh(moment / sizes.unsqueeze(-1) / sizes.unsqueeze(-2))
    values = values.clamp_min(0)
    is_rounding = values.cumsum(-1) <= rounding * values.sum(-1, keepdim=True)
    order = sizes.argsort(-1).unsqueeze(-1)
    sorted_vectors = vectors.take_along_dim(order, -2)
    free = torch.where(is_rounding.unsqueeze(-2), sorted_vectors, 0.0)
    triangle = torch.linalg.qr(free.mT).R.mT
    triangle = torch.where(triangle.abs() > tolerance(free.shape[-1], free.dtype), triangle, 0.0)
    scaled = torch.where(is_rounding.unsqueeze(-2), triangle, sorted_vectors)
    basis = torch.linalg.qr(scaled / sizes.unsqueeze(-1).take_along_dim(order, -2)).Q
    basis = basis.take_along_dim(order.argsort(-2), -2)
    return Spectrum(basis, torch.where(is_rounding, 0.0, torch.inf).to(basis))


def from_rows(rows: Tensor) -> Spectrum:
    """Spectrum of Q = rowsᵀ rows for fewer rows than columns `[..., n, d]`, without a d x d matrix.

    A QR factorisation makes the directions orthonormal to rounding whatever the conditioning, and
    reduces Q to n x n.
    """
    basis, triangle = sorted_qr(rows.mT)
    small = from_odds_matrix(triangle @ triangle.mT)
    return Spectrum(basis @ small.vectors, small.odds)


def sorted_qr(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Factor columns `[..., d, n]`, largest first, into Q `[..., d, m]` and T `[..., m, n]`.

    Entries of T below the rounding error of their column become 0.
    """
    order = columns.square().sum(-2).argsort(-1, descending=True)
    columns = columns.take_along_dim(order.unsqueeze(-2), -1)
    basis, triangle = torch.linalg.qr(columns)
    noise = tolerance(columns.shape[-1], columns.dtype) * columns.square().sum(-2).sqrt()
    return basis, torch.where(triangle.abs() > noise.unsqueeze(-2), triangle, 0.0)


def svd(matrix: Tensor, full_matrices: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """U, s and Vᵀ; of the transpose where LAPACK does not converge, as on rare matrices."""
    try:
        u, values, vh = torch.linalg.svd(matrix, full_matrices=full_matrices)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        v, values, uh = torch.linalg.svd(matrix.mT, full_matrices=full_matrices)
        u, vh = uh.mT, v.mT
    return u, values, vh


# --- accuracy of odds matrices -----------------------------------------------------------


def is_accurate(odds: Tensor) -> bool:
    """Whether rounding in Q `[..., d, d]` is negligible in its conceptor; see `_complement`."""
    return float(_diagonal(odds).amax()) <= LARGE or _complement(odds) is not None


def _complement(odds: Tensor) -> Tensor | None:
    """Return ¬C = (I + Q)⁻¹ by Cholesky, or None if its error could exceed √eps.

    The error is large if rounding in R gives Q a negative eigenvalue, or if rounding in Q is not
    small beside I. With rounding errors of eps √(Q_ii Q_jj), the error of E = (I + Q)⁻¹ is at most
    eps ‖|E| √diag Q‖². If only rounding distinguishes column i from the others, E_ii (1 + Q_ii) is
    near 1 / eps.
    """
    limits = torch.finfo(odds.dtype)
    allowed = math.sqrt(limits.eps)
    shifted = odds.clone()
    _diagonal(shifted).add_(allowed)
    if bool((torch.linalg.cholesky_ex(shifted).info != 0).any()):
        return None
    _diagonal(shifted).add_(1 - allowed)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(shifted))
    sizes = _diagonal(odds).clamp_min(0).sqrt()
    if float(sizes.amax()) ** 2 * limits.eps * odds.shape[-1] > allowed:
        spread = (inverse.abs() @ sizes.unsqueeze(-1)).square().sum((-2, -1))
        alike = _diagonal(inverse * (sizes.square() + 1).unsqueeze(-1))
        noise = 16 * tolerance(odds.shape[-1], odds.dtype) * alike.amax(-1)
        if not bool(((limits.eps * spread <= allowed) & (noise <= 1)).all()):
            return None
    return inverse


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)


def to_matrix(spectrum: Spectrum) -> Tensor:
    """The conceptor matrix U diag(s) Uᵀ + s_rest (I - U Uᵀ), `[..., d, d]`."""
    u, rest = spectrum.vectors, value_of_rest(spectrum)
    matrix: Tensor = (u * (values_of(spectrum.odds) - rest).unsqueeze(-2)) @ u.mT
    if rest:
        _diagonal(matrix).add_(rest)
    return matrix


def singular_values(spectrum: Spectrum) -> Tensor:
    """All d singular values, descending."""
    values = values_of(spectrum.odds)
    missing = spectrum.dim - spectrum.rank
    rest = values.new_full((*values.shape[:-1], missing), value_of_rest(spectrum))
    return torch.cat([values, rest], -1).sort(-1, descending=True).values


def negate(spectrum: Spectrum) -> Spectrum:
    """¬C = I - C."""
    rest = 0.0 if math.isinf(spectrum.rest) else math.inf
    return Spectrum(spectrum.vectors, 1 / spectrum.odds, 0.0 if spectrum.is_dense else rest)


def adapt(spectrum: Spectrum, gamma: float) -> Spectrum:
    """φ(C, γ) = C (C + γ⁻² (I - C))⁻¹; γ = 0 and γ = inf are the limits."""
    odds = spectrum.odds
    if gamma == 0:
        odds = torch.where(torch.isinf(odds), odds, 0.0)
    elif math.isinf(gamma):
        odds = torch.where(odds > 0, torch.inf, odds)
    else:
        soft = (odds > 0) & ~torch.isinf(odds)  # a γ beyond the dtype must not make 0 · inf
        odds = torch.where(soft, odds * gamma * gamma, odds)
    return spectrum._replace(odds=odds)


def harden(spectrum: Spectrum, threshold: float) -> Spectrum:
    """Singular values >= threshold become 1, the others 0."""
    hard = torch.where(values_of(spectrum.odds) >= threshold, torch.inf, 0.0)
    return spectrum._replace(odds=hard.to(spectrum.odds.dtype))


def project(spectrum: Spectrum, x: Tensor) -> Tensor:
    """C x for the rows x of `[..., n, d]`, in 4 n d r operations."""
    u, rest = spectrum.vectors, value_of_rest(spectrum)
    projected = ((x @ u) * (values_of(spectrum.odds) - rest).unsqueeze(-2)) @ u.mT
    return projected + x if rest else projected


def take(spectrum: Spectrum, indices: Tensor) -> Spectrum:
    """Select directions by their indices `[..., k]`."""
    vectors = spectrum.vectors.take_along_dim(indices.unsqueeze(-2), -1)
    return Spectrum(vectors, spectrum.odds.take_along_dim(indices, -1), spectrum.rest)


def complete(spectrum: Spectrum) -> Spectrum:
    """The same conceptor with all d directions; the added ones have the odds `rest`."""
    batch = spectrum.odds.shape[:-1]
    items = []
    for u, odds, rest in items_of(spectrum, batch):
        others = torch.linalg.qr(u, mode="complete").Q[:, u.shape[1] :]
        same = odds.new_full((others.shape[1],), rest)
        items.append(Spectrum(torch.cat([u, others], -1), torch.cat([odds, same])))
    return stack(items, batch)


def orthonormalised(vectors: Tensor) -> Tensor:
    """Make nearly orthonormal (or zero) columns `[..., d, r]` orthonormal to rounding.

    U (3 I - Uᵀ U) / 2 squares the error; twice takes float32 rounding to float64 rounding.
    """
    for _ in range(2):
        turn = -0.5 * (vectors.mT @ vectors)
        _diagonal(turn).add_(1.5)
        vectors = vectors @ turn
    return vectors


def cast(spectrum: Spectrum, dtype: torch.dtype) -> Spectrum:
    """The same spectrum in another dtype, in row-major layout.

    The last bits of products depend on the layout; with one layout, a loaded conceptor computes
    exactly the same as the saved one.
    """
    vectors = spectrum.vectors.to(dtype).contiguous()
    return Spectrum(vectors, spectrum.odds.to(dtype), spectrum.rest)


def pad(spectrum: Spectrum, rank: int) -> Spectrum:
    """Fill up to `rank` with zero columns, which describe no direction."""
    extra = rank - spectrum.rank
    vectors, odds = spectrum.vectors, spectrum.odds
    blank = vectors.new_zeros((*vectors.shape[:-1], extra))
    same = odds.new_full((*odds.shape[:-1], extra), spectrum.rest)
    return Spectrum(torch.cat([vectors, blank], -1), torch.cat([odds, same], -1), spectrum.rest)


def items_of(spectrum: Spectrum, batch: torch.Size) -> list[Spectrum]:
    """Split a batch into its members, without the zero columns that pad them."""
    dim, rank, count = spectrum.dim, spectrum.rank, math.prod(batch)
    vectors = spectrum.vectors.broadcast_to(*batch, dim, rank).reshape(count, dim, rank)
    odds = spectrum.odds.broadcast_to(*batch, rank).reshape(count, rank)
    items = []
    for u, o in zip(vectors, odds):
        real = u.abs().amax(0) > 0
        whole = bool(real.all())
        items.append(Spectrum(u if whole else u[:, real], o if whole else o[real], spectrum.rest))
    return items


def stack(items: list[Spectrum], batch: torch.Size) -> Spectrum:
    """Join spectra into one batch, padded to the largest rank; the inverse of `items_of`."""
    rank = max(item.rank for item in items)
    items = [pad(item, rank) for item in items]
    vectors = torch.stack([item.vectors for item in items])
    odds = torch.stack([item.odds for item in items])
    dim = vectors.shape[-2]
    return Spectrum(vectors.reshape(*batch, dim, rank), odds.reshape(*batch, rank), items[0].rest)
