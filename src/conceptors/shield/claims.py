"""The conceptors of all remembered tasks, together and, with `keep_tasks`, one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm, SpectrumForm
from conceptors.algebra.spectrum import tolerance
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.collect import Moments, rounding
from conceptors.shield.options import Protection
from conceptors.shield.projection import Claim

_LEAST = 0.02  # singular values up to this count as free with an automatic aperture
_STOWED = 2048  # layers with at least this many inputs store their claims in main memory
_BATCHED = 1024  # on a GPU, equal blocks with up to this many inputs are decomposed together
_MODERATE = 1e4  # the largest odds for which a decomposition in float32 is accurate enough
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

    def grown(self, sites: Mapping[str, WeightBlock]) -> Claims:
        """Extend vocabularies to the tokens that they have now; new tokens are free."""
        conceptors, stiffness = dict(self.conceptors), dict(self.stiffness)
        for name, site in sites.items():
            if name in conceptors and site.has_more_tokens(conceptors[name]):
                longer = partial(_longer, site.size[0])
                conceptors[name] = conceptors[name].mapped(longer)
                if name in stiffness:
                    stiffness[name] = longer(stiffness[name])
        return Claims(conceptors, stiffness)

    def without(self, names: Collection[str]) -> Claims:
        """Leave out layers."""
        conceptors = {n: c for n, c in self.conceptors.items() if n not in names}
        return Claims(conceptors, {n: c for n, c in self.stiffness.items() if n not in names})

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

    def without(self, names: Collection[str]) -> Remembered:
        """Free all directions of some layers."""
        tasks = [task.without(names) for task in self.tasks]
        return Remembered(self.claimed.without(names), tasks, self.n_tasks)

    def fitted(self, sites: Mapping[str, WeightBlock]) -> Remembered:
        """Adapt the claims to the current layers, whose vocabularies may have grown.

        Raises:
            ValueError: a layer has other inputs than when tasks were remembered.
        """
        for name, site in sites.items():
            claimed = self.claimed.conceptors.get(name)
            if claimed is None or site.has_more_tokens(claimed):
                continue
            if site.size != (*claimed.batch_shape, claimed.dim):
                raise ValueError(
                    f"layer {name!r} has {site.size[1]} inputs now and had {claimed.dim} when "
                    f"tasks were remembered (biases included; groups: {site.size[0]} and "
                    f"{claimed.batch_shape[0]}), so its protected directions do not fit its "
                    f"inputs. Only outputs and tokens may be added. For new inputs add a layer "
                    f"beside it, or create a new Shield and remember the old tasks' data again"
                )
        tasks = [task.grown(sites) for task in self.tasks]
        return Remembered(self.claimed.grown(sites), tasks, self.n_tasks)

    def quota(self, name: str) -> float:
        """Return the share of a layer's input space that is claimed."""
        if name in self.claimed.conceptors and name not in self._quotas:
            self._quotas[name] = float(self.claimed.conceptors[name].quota.mean())
        return self._quotas.get(name, 0.0)

    def claims(self, sites: Collection[str], protection: Protection) -> dict[str, Claim]:
        """Return the claims of these layers, as guards need them."""
        auto = {name for name in sites if protection.is_auto(name)}
        return {
            name: Claim(
                conceptor,
                rank=protection.rank_of(conceptor.dim),
                least=_LEAST if name in auto else 0.0,
                stiffness=self.claimed.stiffness.get(name) if name in auto else None,
                room=protection.room(name) if conceptor.dim > 2 else 0.0,
            )
            for name, conceptor in self.claimed.conceptors.items()
            if name in sites
        }


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
    for names, is_rough in _alike({name: sites[name] for name in moments}, protection):
        chosen = [name for name in names if protection.is_auto(name) and not moments[name].is_bare]
        matrices = [moments[name].correlation() for name in chosen]
        sigma = dict(zip(chosen, _eigenvalues(matrices, is_rough) if chosen else ()))
        for name in names:  # sums and conceptors need not all fit in memory
            sums, pull = moments.pop(name), protection.pull(name)
            conceptor = _conceptor(name, sums, protection, claimed.get(name), sigma.get(name))
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
    forms = {
        name: conceptor.form
        for name, conceptor in conceptors.items()
        if name in sites
        and conceptor.dim > 1
        and isinstance(conceptor.form, OddsForm)
        and conceptor.form.exact is None
        and float(torch.linalg.matrix_norm(conceptor.form.matrix).max()) <= _MODERATE
    }
    for names, is_rough in _alike({name: sites[name] for name in forms}, protection):
        device = sites[names[0]].parameters[0].device  # loaded claims may be in main memory
        matrices = [forms[name].matrix.to(device) for name in names]
        for name, parts in zip(names, _solved(torch.linalg.eigh, matrices, is_rough)):
            values, vectors = (part.to(forms[name].matrix) for part in parts)
            forms[name].exact = spectra.from_eigen(values, vectors)


def _alike(
    sites: Mapping[str, WeightBlock], protection: Protection
) -> Iterator[tuple[list[str], bool]]:
    """Yield the names of blocks that are decomposed in one call: small ones of one size, on a GPU.

    Yields, too, whether float32 is accurate enough for them.
    """
    groups: dict[tuple[bool, *tuple[object, ...]], list[str]] = {}
    for name, site in sites.items():
        device, dim = site.parameters[0].device, site.size[1]
        is_double = any(p.dtype == torch.float64 for p in site.parameters)
        is_rough = protection.is_auto(name) and not is_double
        alone = None if device.type == "cuda" and dim <= _BATCHED else name
        groups.setdefault((is_rough, device, dim, alone), []).append(name)
    for (is_rough, *_), names in groups.items():
        yield names, is_rough


def _eigenvalues(matrices: list[Tensor], rough: bool = False) -> list[Tensor]:
    """Compute the eigenvalues, descending and at least 0, of matrices `[g, d, d]` of one d."""
    solved = _solved(lambda x: [torch.linalg.eigvalsh(x)], matrices, rough)
    return [values.flip(-1).clamp_min(0) for (values,) in solved]


def _solved(
    solve: Callable[[Tensor], Sequence[Tensor]], matrices: list[Tensor], rough: bool
) -> Iterator[tuple[Tensor, ...]]:
    """Decompose matrices `[g, d, d]` of one d, in float32 if `rough` and LAPACK succeeds there."""
    whole = torch.cat(matrices)
    size = whole.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True).clamp_min(1e-300)
    parts: Sequence[Tensor] = ()
    if rough:
        with suppress(RuntimeError):  # LinAlgError
            values, *vectors = solve((whole / size[..., None]).float())  # cannot overflow
            parts = [values.double() * size, *vectors] if bool(values.isfinite().all()) else ()
    counts = [len(matrix) for matrix in matrices]
    return zip(*(part.double().split(counts) for part in parts or solve(whole)))


def _conceptor(
    name: str,
    sums: Moments,
    protection: Protection,
    claimed: Conceptor | None,
    sigma: Tensor | None = None,
) -> Conceptor:
    """Compute a conceptor, from the eigenvalues of R if they are known.

    Where hard conceptors have a limited rank, directions of earlier tasks have priority.
    """
    limit = protection.rank_of(sums.dim)
    is_exact = sums.sketch is None and sums.coarsest <= rounding(torch.float32)
    if sums.is_bare or (protection.claims_all(name) and limit is None and is_exact):
        spectrum = spectra.occupied(sums.correlation(), _rounding(sums))
        return Conceptor.from_form(SpectrumForm(spectrum, torch.float64))
    choice = protection.aperture(name)
    if isinstance(choice, float):
        if limit is None:
            _check_precision(name, sums, choice)
        conceptor = sums.conceptor(choice)
    else:
        if sigma is None:
            (sigma,) = _eigenvalues([sums.correlation()])
        alpha = choice.aperture(sigma, sums.dim, protection.hard, _rounding(sums))
        conceptor = sums.conceptor(alpha)
    if not protection.hard:
        return conceptor
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


def _check_precision(name: str, sums: Moments, alpha: float) -> None:
    """Raise ValueError if aperture² times rounding is not small: rounding would be protected.

    Rounding of rows is spread evenly over all directions.
    """
    energy = float(sums.energy().max())
    if sums.coarsest * energy / sums.dim * alpha**2 > 0.1:
        is_half = sums.coarsest > rounding(torch.float32)
        raise ValueError(
            f"{'half precision' if is_half else 'float32'} is too coarse for aperture {alpha} at "
            f"layer {name!r}: its inputs have a mean square norm of {energy:.3g}, so rounding "
            f"errors would count as protected directions. Lower the aperture, or call remember "
            f"{'outside autocast' if is_half else 'on a model in float64'}"
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
    return Conceptor.from_form(OddsForm(_product(outer @ turn, total), new.dtype))


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


def _odds(conceptor: Conceptor) -> Tensor:
    """Q `[..., d, d]`."""
    if isinstance(conceptor.form, OddsForm):
        return conceptor.form.matrix
    parts = conceptor.form.spectrum()
    return _product(parts.vectors, parts.odds)


def _product(vectors: Tensor, odds: Tensor) -> Tensor:
    product: Tensor = (vectors * odds.unsqueeze(-2)) @ vectors.mT
    return product
