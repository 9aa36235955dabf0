"""Two conceptors of similar data: what the second claims beyond the first, and where it is free."""

from __future__ import annotations

import torch
from torch import Tensor

from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm, SpectrumForm
from conceptors.algebra.spectrum import Spectrum, tolerance

_MOST = 1e4  # the curvature in the free space counts as at least this small a part of the whole


def join_novel(claimed: Conceptor, new: Conceptor, known: float) -> Conceptor:
    """A ∨ C with what they share counted less, κ = `known`: at κ = 1, once.

    In coordinates where Q_A + Q_C is the identity, both are diagonal together, 1 - t and t; the
    result there is 1 - t + max(0, t - κ (1 - t)). κ = 0 is OR, and κ = 1 the larger of the two, so
    A ∨ A = A. In between, A and C <= the result <= A ∨ C. With fully claimed directions, s = 1,
    this is OR.

    >>> import torch
    >>> C = Conceptor.from_states(torch.eye(3), aperture=3.0)
    >>> [round(float(join_novel(C, C, known).quota), 3) for known in (0.0, 0.5, 1.0)]
    [0.857, 0.818, 0.75]
    """
    is_hard = any(not bool(torch.isfinite(c.odds_trace()).all()) for c in (claimed, new))
    if is_hard or not known:
        return claimed | new
    is_dense = isinstance(claimed.form, OddsForm) or isinstance(new.form, OddsForm)
    if is_dense or claimed.rank + new.rank >= claimed.dim:
        odds = _joined(_odds(claimed), _odds(new), known)
        return Conceptor.from_form(OddsForm(odds, new.dtype))
    parts = claimed.form.spectrum(), new.form.spectrum()
    basis, _ = torch.linalg.qr(torch.cat([part.vectors for part in parts], -1))  # [..., d, r]
    old, more = (_gram(basis.mT @ part.vectors, part.odds) for part in parts)
    values, turn = torch.linalg.eigh(_joined(old, more, known))
    joined = Spectrum(basis @ turn, values.clamp_min(0))
    return Conceptor.from_form(SpectrumForm(joined, claimed.dtype))


def stride(claimed: Conceptor, new: Conceptor, known: float) -> Tensor:
    """How much longer steps may be in the free space of A on data of C: `[...]`, at least 1.

    (λ_max(R) / λ_max(F^½ R F^½))^(κ/2) with F = I - A, R the correlation matrix of C (its aperture
    cancels) and κ = `known`. The ratio is that of the largest curvatures, with and without the
    shield, of a loss that is quadratic in a layer's outputs; it counts up to 10⁴.

    >>> import torch
    >>> A = Conceptor.from_states(torch.eye(3), aperture=3.0)  # F = I / 4
    >>> [round(float(stride(A, A, known)), 3) for known in (0.0, 0.5, 1.0)]
    [1.0, 1.414, 2.0]
    """
    vectors, odds, _ = new.form.spectrum()
    roots = vectors * odds.sqrt().unsqueeze(-2)  # K with K Kᵀ = α² R
    free = torch.diag_embed(odds) - (claimed @ roots.mT) @ roots  # Kᵀ F K
    top = odds.amax(-1).clamp_min(torch.finfo(odds.dtype).tiny)
    remaining = torch.linalg.eigvalsh((free + free.mT) / 2)[..., -1]
    ratio = torch.where(odds.amax(-1) > 0, top / remaining.clamp(top / _MOST, top), 1.0)
    return ratio ** (known / 2)


def _joined(old: Tensor, more: Tensor, known: float) -> Tensor:
    """Q `[..., d, d]` of Q_A = `old` and Q_C = `more`."""
    sizes, axes = torch.linalg.eigh(old + more)
    least = tolerance(old.shape[-1], old.dtype) * sizes[..., -1:]
    inner = axes * torch.where(sizes > least, sizes.rsqrt(), 0.0).unsqueeze(-2)
    outer = axes * torch.where(sizes > least, sizes.sqrt(), 0.0).unsqueeze(-2)
    share, turn = torch.linalg.eigh(inner.mT @ more @ inner)
    share = share.clamp(0, 1)  # t
    total = 1 - share + (share - known * (1 - share)).clamp_min(0)
    return _gram(outer @ turn, total)


def _odds(conceptor: Conceptor) -> Tensor:
    """Q `[..., d, d]`."""
    if isinstance(conceptor.form, OddsForm):
        return conceptor.form.matrix
    parts = conceptor.form.spectrum()
    return _gram(parts.vectors, parts.odds)


def _gram(vectors: Tensor, odds: Tensor) -> Tensor:
    gram: Tensor = (vectors * odds.unsqueeze(-2)) @ vectors.mT
    return gram
