"""AND, OR, order and similarity of two spectra.

Sums and intersections of subspaces jump where directions become equal, so `same_angle` defines the
angle below which two directions count as one. All decisions use sines instead of cosines: at an
angle of 1e-6, 1 - cos is 5e-13, and rounding leaves only three digits of it.
"""

import math

import torch
from torch import Tensor

from conceptors.algebra import spectrum as spectra
from conceptors.algebra.spectrum import Spectrum, tolerance, value_of_rest

_ACCURATE = 1e-12  # an error of singular values that eigh may make


def disjoin(a: Spectrum, b: Spectrum, stored: torch.dtype | None = None) -> Spectrum:
    """Return A ∨ B, the sum of odds matrices, exact also for singular values of 0 and 1.

    A direction that A or B includes fully stays so: directions of infinite odds span H, the
    sum of both such spaces. Elsewhere odds add: with F = [U_a √o_a, U_b √o_b], projected out of H,
    the odds of A ∨ B are the squared singular values of F, and its directions those on the left.

    Args:
        stored: dtype of the result, to which a and b were rounded too (default: that of a).
    """
    stored = a.vectors.dtype if stored is None else stored
    if (other := _beside_neutral(a, b, 0.0)) is not None:
        return spectra.cast(other, stored)
    a, b = _widen(a), _widen(b)
    if a.dim == 1:  # often thousands of numbers: one per token
        total = _number(a) + _number(b)
        return spectra.cast(Spectrum(torch.ones_like(total).unsqueeze(-1), total), stored)
    basis, inner_a, inner_b = _in_common_span(a, b)
    joined = _add(inner_a, inner_b, stored)
    if basis is not None:
        joined = Spectrum(basis @ joined.vectors, joined.odds, max(a.rest, b.rest))
        distance = 1 / joined.odds if joined.rest else joined.odds
        count = int((joined.odds != joined.rest).sum(-1).amax())
        joined = spectra.take(joined, distance.topk(count, dim=-1).indices)
    return spectra.cast(joined, stored)


def conjoin(a: Spectrum, b: Spectrum, stored: torch.dtype | None = None) -> Spectrum:
    """Return A ∧ B = ¬(¬A ∨ ¬B).

    For invertible A, B this is (A⁻¹ + B⁻¹ - I)⁻¹; for hard projectors it is the projector on the
    intersection of their ranges.
    """
    stored = a.vectors.dtype if stored is None else stored
    if (other := _beside_neutral(a, b, math.inf)) is not None:
        return spectra.cast(other, stored)
    return spectra.negate(disjoin(spectra.negate(_widen(a)), spectra.negate(_widen(b)), stored))


def precedes(a: Spectrum, b: Spectrum) -> Tensor:
    """Whether A <= B: B - A has no negative eigenvalue, up to the tolerance."""
    tol = tolerance(a.dim, a.vectors.dtype)
    basis, inner_a, inner_b = _in_common_span(_widen(a), _widen(b))
    gap = spectra.to_matrix(inner_b) - spectra.to_matrix(inner_a)
    gap = torch.nn.functional.pad(gap, (0, 1, 0, 1))  # the span may be empty
    is_below: Tensor = torch.linalg.eigvalsh(gap).amin(-1) >= -4 * tol
    return is_below & (basis is None or a.rest <= b.rest)


def similarity(a: Spectrum, b: Spectrum) -> Tensor:
    """Return ρ = tr(A B) / (‖A‖ ‖B‖) in [0, 1]; 0 where A or B is zero."""
    basis, *parts = _in_common_span(_widen(a), _widen(b))
    outside = 0 if basis is None else a.dim - basis.shape[-1]
    matrices = []
    for x, part in zip((a, b), parts):
        matrix = torch.nn.functional.pad(spectra.to_matrix(part), (0, 1, 0, 1))
        matrix[..., -1, -1] = value_of_rest(x) * math.sqrt(outside)  # for all directions outside
        size = matrix.abs().amax((-2, -1), keepdim=True)  # squares may underflow
        matrices.append(matrix / size.clamp_min(torch.finfo(matrix.dtype).tiny))
    norm_a, norm_b = map(torch.linalg.matrix_norm, matrices)
    overlap = (matrices[0] * matrices[1]).sum((-2, -1))
    rho = torch.where(norm_a * norm_b > 0, overlap / (norm_a * norm_b), 0.0)
    return spectra.snap(rho.to(a.odds), tolerance(a.dim, a.odds.dtype))


# --- parts of OR -------------------------------------------------------------------------


def _beside_neutral(a: Spectrum, b: Spectrum, neutral: float) -> Spectrum | None:
    """Return C for 0 ∨ C and I ∧ C, exact to the last bit: one operand has only neutral odds."""
    batch = _common_batch(a, b)
    for one, other in ((a, b), (b, a)):
        if one.rank == 0 and one.rest == neutral and other.odds.shape[:-1] == batch:
            return other
    return None


def _number(spectrum: Spectrum) -> Tensor:
    """The odds `[..., 1]` of the only direction of a space of one dimension."""
    odds = spectrum.odds
    return odds if spectrum.rank else odds.new_full((*odds.shape[:-1], 1), spectrum.rest)


def _in_common_span(a: Spectrum, b: Spectrum) -> tuple[Tensor | None, Spectrum, Spectrum]:
    """Return a basis `[..., d, m]` of the directions that a and b store, and both within its span.

    The basis is None where the span is the whole space. Beside it, all directions have the odds
    `rest`; within it, all directions of odds other than 0 are stored.
    """
    parts, basis = _expanded(a, b), None
    if a.rank + b.rank < a.dim:
        basis = torch.linalg.qr(torch.cat([x.vectors for x in parts], -1)).Q
        parts = [x._replace(vectors=basis.mT @ x.vectors) for x in parts]
    a, b = (x if x.is_dense or not x.rest else spectra.complete(x) for x in parts)
    return basis, a, b


def _add(a: Spectrum, b: Spectrum, stored: torch.dtype) -> Spectrum:
    """A ∨ B with all directions, where those that a spectrum does not store have the odds 0."""
    hard_a, hard_b = _hard_columns(a), _hard_columns(b)
    hard = torch.cat([hard_a, _added(hard_a, hard_b, same_angle(stored))], -1)
    roots = torch.cat([_roots(a), _roots(b)], -1)
    if hard.shape[-1]:
        roots = roots - hard @ (hard.mT @ roots)
    vectors, odds = _squares(roots, stored)
    if hard.shape[-1]:
        infinite = torch.where(hard.abs().amax(-2) > 0, torch.inf, 0.0)
        vectors, odds = torch.cat([hard, vectors], -1), torch.cat([infinite, odds], -1)
    order = odds.argsort(dim=-1, descending=True, stable=True)[..., : a.dim]
    joined = spectra.pad(spectra.take(Spectrum(vectors, odds), order), a.dim)
    claimed = joined.odds.unsqueeze(-2) > 0
    if hard.shape[-1] or not bool(claimed.all()):
        # claimed columns come first: QR makes them orthonormal, and the others complete them
        vectors = torch.linalg.qr(torch.where(claimed, joined.vectors, 0.0)).Q
        joined = joined._replace(vectors=vectors)
    return joined


def _hard_columns(spectrum: Spectrum) -> Tensor:
    """The directions of infinite odds `[..., d, h]`; zero columns where a batch has fewer."""
    hard = spectrum.odds.isinf()
    columns = _in_any(hard)
    return spectrum.vectors[..., columns] * hard[..., None, columns]


def _in_any(mask: Tensor) -> Tensor:
    """Which columns `[r]` some member of the batch `[..., r]` has."""
    return mask.flatten(0, -2).any(0) if mask.ndim > 1 else mask


def _roots(spectrum: Spectrum) -> Tensor:
    """U √o `[..., d, r]` of the finite odds."""
    soft = torch.where(spectrum.odds.isinf(), 0.0, spectrum.odds)
    columns = _in_any(soft > 0)
    return spectrum.vectors[..., columns] * soft[..., None, columns].sqrt()


def _common_batch(a: Spectrum, b: Spectrum) -> torch.Size:
    return torch.Size(torch.broadcast_shapes(a.odds.shape[:-1], b.odds.shape[:-1]))


def _expanded(a: Spectrum, b: Spectrum) -> list[Spectrum]:
    """Both with their common batch."""
    batch = _common_batch(a, b)
    return [
        Spectrum(x.vectors.expand(*batch, -1, -1), x.odds.expand(*batch, -1), x.rest)
        for x in (a, b)
    ]


def _squares(roots: Tensor, stored: torch.dtype) -> tuple[Tensor, Tensor]:
    """Eigenvectors `[..., d, m]` and eigenvalues `[..., m]` of F Fᵀ for F `[..., d, r]`, m <= d, r.

    Squaring F costs half of the digits, which eigh can afford while odds are small. Otherwise
    F = B T by QR, largest columns first, and `graded` resolves the different scales of T Tᵀ. If it
    cannot, the singular values of F are accurate to eps · max √o.
    """
    dim, count = roots.shape[-2:]
    if not roots.numel():
        return roots[..., :0], roots.new_zeros((*roots.shape[:-2], 0))
    limits = torch.finfo(roots.dtype)
    size = roots.abs().amax((-2, -1), keepdim=True).clamp_min(limits.tiny)
    size = size.log2().floor().exp2()  # a power of two, so that odds of 1e308 can be squared
    roots, size = roots / size, size.squeeze(-1)
    energy = roots.square().sum((-2, -1)) * size.squeeze(-1).square()
    basis = None
    if count < dim:
        basis, roots = torch.linalg.qr(roots)
    if float(energy.amax()) * limits.eps <= max(_ACCURATE, torch.finfo(stored).eps / 100):
        values, vectors = torch.linalg.eigh(roots @ roots.mT)
        noise = tolerance(dim, roots.dtype)
    else:
        turn, roots = spectra.sorted_qr(roots)
        basis = turn if basis is None else basis @ turn
        resolved = spectra.graded(roots @ roots.mT * size.unsqueeze(-1).square())
        if resolved is not None:
            return basis @ resolved.vectors, resolved.odds
        if count > dim:
            roots = torch.linalg.qr(roots.mT, mode="r").R.mT
        vectors, values, _ = spectra.svd(roots)
        values, noise = values.square(), tolerance(dim, roots.dtype) ** 2
    top = values.amax(-1, keepdim=True)
    least = tolerance(dim, stored) / (top * size.square())
    least = least.clamp_max(same_angle(stored) ** 2).clamp_min(noise)
    odds = torch.where(values > least * top, values * size * size, 0.0).clamp_max(limits.max)
    return vectors if basis is None else basis @ vectors, odds


def _widen(spectrum: Spectrum) -> Spectrum:
    """Convert to float64, with directions orthonormal in float64."""
    if spectrum.vectors.dtype == torch.float64:
        return spectrum
    wide = spectra.cast(spectrum, torch.float64)
    return wide._replace(vectors=spectra.orthonormalised(wide.vectors))


def same_angle(stored: torch.dtype) -> float:
    """Return the angle below which directions are the same: 1e-7, in float32 4.8e-7.

    Rounding to float32 turns a subspace by up to 1e-7, and so does rounding in float32 data. In
    float64, two tasks on the same subspace still do not determine it to all digits.
    """
    return max(1e-7, 4 * torch.finfo(stored).eps)


def _added(u: Tensor, v: Tensor, least: float) -> Tensor:
    """Return orthonormal columns `[..., d, k]` that extend the span of u to that of u and v.

    Directions of v at an angle to span(u) whose sine is at most `least` add nothing. In a batch
    zero columns, after all others, fill up to the largest k.
    """
    basis: Tensor
    basis, triangle = torch.linalg.qr(v - u @ (u.mT @ v))
    left, sines, _ = spectra.svd(triangle)
    is_new = sines > least  # descending, so new ones come first
    count = int(is_new.sum(-1).amax()) if is_new.numel() else 0
    if not count:
        return basis[..., :0]
    new = (basis @ left[..., :count]) * is_new[..., None, :count]
    new = new - u @ (u.mT @ new)  # directions of tiny sine need it again
    orthonormal: Tensor = torch.linalg.qr(new).Q * is_new[..., None, :count]
    return orthonormal
