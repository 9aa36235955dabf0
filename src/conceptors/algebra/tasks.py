"""Conceptors of successive tasks: what a new task shares with A, the OR of earlier ones."""

import torch
from torch import Tensor

from conceptors.algebra import logic
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm, SpectrumForm
from conceptors.algebra.spectrum import tolerance

_MOST = 1e4  # the curvature in the free space counts as at least this small a part of the whole


def join_novel(claimed: Conceptor, new: Conceptor, known: float) -> Conceptor:
    """A ∨ C with what they share counted less, κ = `known`: at κ = 1, once.

    In coordinates where Q_A + Q_C is the identity, both are diagonal together, 1 - t and t; the
    result there is 1 - t + max(0, t - κ (1 - t)). κ = 0 is OR, and κ = 1 the larger of the two, so
    A ∨ A = A. In between, A and C <= the result <= A ∨ C. With fully claimed directions, s = 1,
    and for sketches of wide layers, this is OR.

    >>> import torch
    >>> C = Conceptor.from_states(torch.eye(3), aperture=3.0)
    >>> [round(float(join_novel(C, C, known).quota), 3) for known in (0.0, 0.5, 1.0)]
    [0.857, 0.818, 0.75]
    """
    is_hard = any(not bool(torch.isfinite(c.odds_trace()).all()) for c in (claimed, new))
    if is_hard or not known or (claimed.is_factored and new.is_factored):
        return claimed | new
    more = _odds(new)
    sizes, axes = torch.linalg.eigh(_odds(claimed) + more)
    is_used = sizes > tolerance(sizes.shape[-1], sizes.dtype) * sizes[..., -1:]
    inner = axes * torch.where(is_used, sizes.rsqrt(), 0.0).unsqueeze(-2)
    outer = axes * torch.where(is_used, sizes.sqrt(), 0.0).unsqueeze(-2)
    share, turn = torch.linalg.eigh(inner.mT @ more @ inner)
    share = share.clamp(0, 1)  # t
    total = 1 - share + (share - known * (1 - share)).clamp_min(0)
    return Conceptor(OddsForm(_product(outer @ turn, total), new.dtype))


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


def free_share(claimed: Conceptor, new: Conceptor) -> Tensor:
    """Compute the share of a task's inputs x in free directions of A, 1 - E xᵀA x / E|x|².

    A gradient is a sum of outer products with the inputs, so about this share of it is applied.
    """
    form = new.form
    if isinstance(form, OddsForm):  # a decomposition would take longer
        protected, whole = (claimed.matrix() * form.matrix).sum(), form.trace().sum()
    else:
        vectors, odds, _ = form.spectrum()
        sizes = torch.where(odds.isfinite(), odds, 1.0)  # infinite for a bare parameter
        roots = vectors * sizes.sqrt().unsqueeze(-2)  # K with K Kᵀ = α² R
        protected, whole = claimed.evidence(roots.mT).sum(), sizes.sum()
    share: Tensor = 1 - protected / whole.clamp_min(1e-300)
    return share


def restrict(claimed: Conceptor, columns: Tensor) -> Conceptor:
    """Return the conceptor for changes of these columns, with the other columns fixed.

    It is the conceptor of the submatrix of the odds Q. Directions of infinite odds are claimed
    with their components in these columns.
    """
    spectrum = claimed.form.spectrum()
    batch = claimed.batch_shape
    items = []
    if spectrum.rest:  # everything else is claimed: list all directions
        spectrum = spectra.complete(spectrum)
    for item in spectra.items_of(spectrum, batch):
        rows = item.vectors[columns.to(item.vectors.device)]  # [k, r]
        hard = torch.isinf(item.odds)
        soft_part = spectra.from_odds_matrix((rows * torch.where(hard, 0.0, item.odds)) @ rows.mT)
        left, sines, _ = spectra.svd(rows[:, hard], full_matrices=False)
        vectors = left[:, sines > spectra.tolerance(len(columns), rows.dtype)]
        odds = torch.full((vectors.shape[1],), torch.inf, dtype=rows.dtype, device=rows.device)
        hard_part = spectra.Spectrum(vectors, odds)
        items.append(logic.disjoin(soft_part, hard_part) if vectors.shape[1] else soft_part)
    joined = spectra.stack(items, batch) if batch else items[0]
    return Conceptor(SpectrumForm(joined, claimed.dtype))


def _odds(conceptor: Conceptor) -> Tensor:
    """Q `[..., d, d]`."""
    if isinstance(conceptor.form, OddsForm):
        return conceptor.form.matrix
    parts = conceptor.form.spectrum()
    return _product(parts.vectors, parts.odds)


def _product(vectors: Tensor, odds: Tensor) -> Tensor:
    product: Tensor = (vectors * odds.unsqueeze(-2)) @ vectors.mT
    return product
