"""The conceptors of all remembered tasks, together and, with `keep_tasks`, one by one."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm, SpectrumForm
from conceptors.algebra.spectrum import is_accurate, tolerance
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.collect import Moments, rounding
from conceptors.shield.options import Protection
from conceptors.shield.projection import Claim

_LEAST = 0.02  # singular values up to this count as free with an automatic aperture
_STOWED = 2048  # layers with at least this many inputs store their claims in main memory
_BATCHED = 1024  # on a GPU, equal blocks with up to this many inputs are decomposed together
_ROUGH = 1e4  # the largest odds for which a decomposition in float32 is accurate enough
_MOST = 1e4  # the curvature in the free space counts as at least this small a part of the whole


@dataclass
class Claims:
    """The conceptors of all layers, and the stiffness of their pulls.

    Attributes:
        conceptors: by layer, of all tasks or of one; a batch of one conceptor per group.
        stiffness: c `[g]` by layer, for layers with a pull; see `FreeSpace.pull`.
    """

    conceptors: dict[str, Conceptor] = field(default_factory=dict)
    stiffness: dict[str, Tensor] = field(default_factory=dict)

    def with_tokens(self, counts: Mapping[str, int]) -> Claims:
        """Extend vocabularies to these numbers of tokens; new tokens are free."""
        conceptors, stiffness = dict(self.conceptors), dict(self.stiffness)
        for name, count in counts.items():
            conceptors[name] = conceptors[name].mapped(partial(_longer, count))
            if name in stiffness:
                stiffness[name] = _longer(count, stiffness[name])
        return Claims(conceptors, stiffness)

    def stowed(self) -> Claims:
        """Move large matrices to main memory, to save memory of the GPU."""
        stowed = {
            name: c.mapped(lambda tensor, _: tensor.cpu()) if c.dim >= _STOWED else c
            for name, c in self.conceptors.items()
        }
        return Claims(stowed, self.stiffness)


@dataclass
class Remembered:
    """The claims of all tasks together, and of each task if they are stored separately."""

    claimed: Claims = field(default_factory=Claims)
    tasks: list[Claims] = field(default_factory=list)
    n_tasks: int = 0
    _quotas: dict[str, float] = field(default_factory=dict)

    def with_task(
        self,
        task: Claims,
        sites: Mapping[str, WeightBlock],
        protection: Protection,
        keep: bool,
        known: float = 0.0,
    ) -> Remembered:
        """Add a task; `keep` also stores it separately. `known`: see `join`."""
        claimed = join(self.claimed, task, sites, protection, known)
        tasks = [*self.tasks, task.stowed()] if keep else self.tasks
        return Remembered(claimed, tasks, self.n_tasks + 1)

    def without_task(
        self, index: int, sites: Mapping[str, WeightBlock], protection: Protection
    ) -> Remembered:
        """Remove one of the tasks that are stored separately."""
        tasks = [task for i, task in enumerate(self.tasks) if i != index]
        claimed = Claims()
        for task in tasks:
            claimed = join(claimed, task, sites, protection)
        return Remembered(claimed, tasks, self.n_tasks - 1)

    def fitted(self, sites: Mapping[str, WeightBlock]) -> Remembered:
        """Adapt the claims to the current layers, whose vocabularies may have grown.

        Raises:
            ValueError: a layer has other inputs than when tasks were remembered.
        """
        claimed, sizes = self.claimed.conceptors, dict[str, int]()
        for name, site in sites.items():
            if name in claimed and site.size != (*claimed[name].batch_shape, claimed[name].dim):
                _check_has_grown(site, claimed[name])
                sizes[name] = site.size[0]
        if not sizes:
            return self
        tasks = [
            task.with_tokens({n: c for n, c in sizes.items() if n in task.conceptors})
            for task in self.tasks
        ]
        return Remembered(self.claimed.with_tokens(sizes), tasks, self.n_tasks)

    def quota(self, name: str) -> float:
        """Return the share of a layer's input space that is claimed."""
        if name not in self.claimed.conceptors:
            return 0.0
        if name not in self._quotas:
            self._quotas[name] = float(self.claimed.conceptors[name].quota.mean())
        return self._quotas[name]

    def claims(self, sites: Iterable[str], protection: Protection) -> dict[str, Claim]:
        """Return the claims of these layers, as guards need them."""
        claims = {}
        for name in sites:
            conceptor = self.claimed.conceptors.get(name)
            if conceptor is not None:
                auto = protection.is_auto(name)
                claims[name] = Claim(
                    conceptor,
                    rank=protection.rank_of(conceptor.dim),
                    least=_LEAST if auto else 0.0,
                    stiffness=self.claimed.stiffness.get(name) if auto else None,
                    room=protection.room(name) if conceptor.dim > 2 else 0.0,
                )
        return claims


def join(
    claimed: Claims,
    task: Claims,
    sites: Mapping[str, WeightBlock],
    protection: Protection,
    known: float = 0.0,
) -> Claims:
    """Compute A ∨ C of every layer, within the rank of its sketch, and add up the stiffness.

    Directions that A and C share count less by `known`, see `join_novel`.
    The joint stiffness c is the mean of all tasks' c, weighted by tr Q, so that the c Q add up.
    """
    joined = Claims(dict(claimed.conceptors), dict(claimed.stiffness))
    for name, new in task.stiffness.items():
        joined.stiffness[name] = new
        if name in claimed.stiffness and name in claimed.conceptors:
            before, now = (c.conceptors[name].odds_trace().to(new) for c in (claimed, task))
            both = claimed.stiffness[name].to(new) * before + new * now
            joined.stiffness[name] = both / (before + now).clamp_min(1e-300)
    for name, conceptor in task.conceptors.items():
        device = sites[name].parameters[0].device if name in sites else conceptor.device
        union = conceptor.to(device)
        if name in claimed.conceptors:
            union = join_novel(claimed.conceptors[name].to(device), union, known)
        limit = protection.joint_rank(union.dim)
        if limit is not None and union.is_factored and union.rank > limit:
            union = union.top_k(limit)
        joined.conceptors[name] = union
    return joined


def claims_of_task(
    moments: dict[str, Moments],
    sites: Mapping[str, WeightBlock],
    protection: Protection,
    claimed: Mapping[str, Conceptor],
) -> Claims:
    """Compute the conceptors of one task from its moments, and empty `moments`.

    Args:
        claimed: the conceptors of earlier tasks, for hard conceptors with a limited rank.
    """
    claims = Claims()
    used = {name: sites[name] for name in moments}
    rough = {name for name, site in used.items() if _is_rough(site, protection)}
    for names in _alike(used, rough):  # sums and conceptors need not all fit in memory
        chosen = [name for name in names if protection.is_auto(name) and not moments[name].is_bare]
        matrices = [moments[name].correlation() for name in chosen]
        sigma = dict(zip(chosen, _eigenvalues(matrices, names[0] in rough)))
        for name in names:
            sums, pull = moments.pop(name), protection.pull(name)
            if protection.hard or sums.is_bare:
                conceptor = _hard_conceptor(name, sums, protection, claimed.get(name))
            else:
                conceptor = _conceptor(name, sums, protection, sigma.get(name))
            claims.conceptors[name] = conceptor
            if pull and not sums.is_bare:  # a fixed parameter needs no pull
                odds = conceptor.odds_trace().clamp_min(1e-300)  # [g], of Q = α² R
                drift = _weight_of_drift(sites[name], sums)
                claims.stiffness[name] = pull * drift.to(odds) / odds
    return claims


def decompose(
    conceptors: Mapping[str, Conceptor], sites: Mapping[str, WeightBlock], protection: Protection
) -> None:
    """Decompose the odds of conceptors, which guards need; on a GPU, equal ones in one call.

    The result depends on the odds alone, so training resumes bit for bit from a checkpoint.
    """
    forms, rough = dict[str, OddsForm](), set[str]()
    for name, conceptor in conceptors.items():
        form = conceptor.form
        if isinstance(form, OddsForm) and name in sites and not form.has_spectrum:
            size = float(torch.linalg.matrix_norm(form.matrix).max())
            if conceptor.dim > 1 and size <= spectra.LARGE:  # larger ones are decomposed in parts
                forms[name] = form
            if size <= _ROUGH and _is_rough(sites[name], protection):
                rough.add(name)
    for names in _alike({name: sites[name] for name in forms}, rough):
        device = sites[names[0]].parameters[0].device  # loaded claims may be in main memory
        whole = torch.cat([forms[name].matrix.to(device) for name in names])
        odds, vectors = torch.linalg.eigh(whole.float() if names[0] in rough else whole)
        counts = [len(forms[name].matrix) for name in names]
        for name, *parts in zip(names, odds.split(counts), vectors.split(counts)):
            forms[name].provide(*(part.to(forms[name].matrix) for part in parts))


def _is_rough(site: WeightBlock, protection: Protection) -> bool:
    """Whether float32 is accurate enough for the decompositions of a block."""
    is_double = any(p.dtype == torch.float64 for p in site.parameters)
    return protection.is_auto(site.name) and not is_double


def _alike(sites: Mapping[str, WeightBlock], rough: Collection[str]) -> list[list[str]]:
    """Group the blocks that are decomposed in one call: small ones of one size, on a GPU."""
    groups: dict[object, list[str]] = {}
    for name, site in sites.items():
        device, dim = site.parameters[0].device, site.size[1]
        is_small = device.type == "cuda" and dim <= _BATCHED
        groups.setdefault((device, dim, name in rough) if is_small else name, []).append(name)
    return list(groups.values())


def _eigenvalues(matrices: list[Tensor], rough: bool = False) -> list[Tensor]:
    """Compute the eigenvalues, descending and at least 0, of matrices `[g, d, d]` of one d."""
    if not matrices:
        return []
    whole = torch.cat(matrices)
    if whole.shape[-1] > 1:
        values = torch.linalg.eigvalsh(whole.float() if rough else whole).double().flip(-1)
    else:
        values = whole[..., 0]
    counts = [len(matrix) for matrix in matrices]
    return list(values.clamp_min(0).split(counts))


def _conceptor(
    name: str, sums: Moments, protection: Protection, sigma: Tensor | None = None
) -> Conceptor:
    """Compute a soft conceptor, from the eigenvalues of R if they are known."""
    choice = protection.aperture(name)
    if isinstance(choice, float):
        _check_precision(name, sums, choice, protection.rank_of(sums.dim) is not None)
        return sums.conceptor(choice)
    if sigma is None:
        (sigma,) = _eigenvalues([sums.correlation()])
    return sums.conceptor(choice.aperture(sigma, sums.dim, protection.hard, _rounding(sums)))


def _hard_conceptor(
    name: str, sums: Moments, protection: Protection, claimed: Conceptor | None
) -> Conceptor:
    """Compute a hard conceptor; with a limited rank, directions of earlier tasks have priority."""
    limit = protection.rank_of(sums.dim)
    is_exact = sums.sketch is None and sums.coarsest <= rounding(torch.float32)
    if sums.is_bare or (protection.claims_all(name) and limit is None and is_exact):
        spectrum = spectra.occupied(sums.correlation(), _rounding(sums))
        return Conceptor.from_form(SpectrumForm(spectrum, torch.float64))
    conceptor = _conceptor(name, sums, protection)
    if limit is not None and limit < conceptor.dim:
        used = 0 if claimed is None else int((claimed.singular_values > 0.5).sum(-1).max())
        conceptor = conceptor.top_k(max(0, limit - used))
    return conceptor.harden()


def _weight_of_drift(site: WeightBlock, moments: Moments) -> Tensor:
    """Compute tr R `[g]` over E|W x|², which measures drift relative to the layer's outputs.

    A layer with zero outputs, such as a new adapter, counts as having a hundredth of usual weights.
    """
    full = {id(p): site.whole(p.data) for p in site.parameters}
    matrix = site.matrix(site.parameters, full)  # [g, out, d]
    inputs, outputs = moments.energy(), moments.output_energy(matrix)
    out, dim = matrix.shape[1:]
    least = 1e-4 * (out / (3 * dim)) * inputs.sum()
    return inputs / torch.maximum(outputs.sum(), least).clamp_min(1e-300)


def _rounding(sums: Moments) -> float:
    """Return the share of the rows' energy that may be rounding, of the rows or of their sums.

    Rounding in the sums is spread over all directions, and its negative half is cut off. Rows of
    half precision are summed in float32.
    """
    is_half = sums.coarsest > rounding(torch.float32)
    eps = torch.finfo(torch.float32 if is_half else torch.float64).eps
    return max(1e-12, 4 * sums.coarsest, math.sqrt(sums.dim) * eps / 2)


def _check_precision(name: str, sums: Moments, alpha: float, limited: bool) -> None:
    """Raise ValueError if aperture² times rounding is not small: rounding would be protected.

    Rounding in the sums is relative to the largest direction. Rounding of rows in half precision
    is spread evenly over all directions, and is harmless where their number is limited.
    """
    top = float(sums.energy().max())
    in_rows = 0.0 if limited else sums.coarsest * top / sums.dim * alpha**2
    in_sums = torch.finfo(torch.float64).eps * top * alpha**2
    if max(in_sums, in_rows) <= 0.1:
        return
    is_dense = in_rows <= 0.1 and sums.sketch is None
    if is_dense and is_accurate(sums.correlation() * alpha**2):  # columns of other scales
        return
    is_half = in_rows > in_sums
    raise ValueError(
        f"{'half precision' if is_half else 'float64'} is too coarse for aperture {alpha} at layer "
        f"{name!r}: its inputs have a mean square norm of {top:.3g}, so rounding errors would "
        f"count as protected directions. Lower the aperture"
        f"{', or call remember outside autocast' if is_half else ''}"
    )


def _check_has_grown(site: WeightBlock, claimed: Conceptor) -> None:
    """Raise ValueError unless a block is a vocabulary that has more tokens than were remembered."""
    if site.has_more_tokens(claimed):
        return
    had, has = (
        f"{d} inputs" if g == 1 else f"{g} groups of {d}"
        for g, d in [(claimed.batch_shape[0], claimed.dim), site.size]
    )
    raise ValueError(
        f"layer {site.name!r} has {has} now (biases included) and had {had} when tasks were "
        f"remembered, so its protected directions do not fit its inputs. Only outputs and tokens "
        f"may be added. For new inputs add a layer beside it, or create a new Shield and remember "
        f"the old tasks' data again"
    )


def _longer(count: int, x: Tensor, *_: object) -> Tensor:
    """Extend x to `[count, ...]` with zeros."""
    return torch.cat([x, x.new_zeros(count - len(x), *x.shape[1:])])


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
    if is_hard or not known:
        return claimed | new
    if claimed.is_factored and new.is_factored:
        return claimed | new
    odds = _joined(_odds(claimed), _odds(new), known)
    return Conceptor.from_form(OddsForm(odds, new.dtype))


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
    is_used = sizes > tolerance(old.shape[-1], old.dtype) * sizes[..., -1:]
    inner = axes * torch.where(is_used, sizes.rsqrt(), 0.0).unsqueeze(-2)
    outer = axes * torch.where(is_used, sizes.sqrt(), 0.0).unsqueeze(-2)
    share, turn = torch.linalg.eigh(inner.mT @ more @ inner)
    share = share.clamp(0, 1)  # t
    total = 1 - share + (share - known * (1 - share)).clamp_min(0)
    return _product(outer @ turn, total)


def _odds(conceptor: Conceptor) -> Tensor:
    """Q `[..., d, d]`."""
    if isinstance(conceptor.form, OddsForm):
        return conceptor.form.matrix
    parts = conceptor.form.spectrum()
    return _product(parts.vectors, parts.odds)


def _product(vectors: Tensor, odds: Tensor) -> Tensor:
    product: Tensor = (vectors * odds.unsqueeze(-2)) @ vectors.mT
    return product
