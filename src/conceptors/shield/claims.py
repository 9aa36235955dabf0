"""The conceptors of all remembered tasks, together and, with `keep_tasks`, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import OddsForm, SpectrumForm
from conceptors.algebra.spectrum import Spectrum, is_accurate
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.novelty import join_novel
from conceptors.shield.options import Protection
from conceptors.shield.projection import Claim
from conceptors.shield.remember.moments import Moments, SketchedMoments, rounding

_LEAST = 0.02  # singular values up to this count as free with an automatic aperture
_STOWED = 2048  # layers with at least this many inputs store their claims in main memory


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
            if name in conceptors:
                conceptors[name] = _with_tokens(conceptors[name], count)
            if name in stiffness:
                stiffness[name] = _longer(stiffness[name], count)
        return Claims(conceptors, stiffness)

    def stowed(self) -> Claims:
        """Move large matrices to main memory, to save memory of the GPU."""
        return Claims({name: _stowed(c) for name, c in self.conceptors.items()}, self.stiffness)


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
        sizes = {
            name: sites[name].size[0]
            for name, conceptor in self.claimed.conceptors.items()
            if _has_grown(name, conceptor, sites)
        }
        if not sizes:
            return self
        tasks = [task.with_tokens(sizes) for task in self.tasks]
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
        old = claimed.stiffness.get(name)
        if old is None or name not in claimed.conceptors:
            joined.stiffness[name] = new
            continue
        before, now = (c.conceptors[name].odds_trace().to(new) for c in (claimed, task))
        total = (before + now).clamp_min(1e-300)
        joined.stiffness[name] = (old.to(new) * before + new * now) / total
    for name, conceptor in task.conceptors.items():
        site = sites.get(name)
        device = conceptor.device if site is None else site.parameters[0].device
        union = conceptor.to(device)
        if name in claimed.conceptors:
            union = join_novel(claimed.conceptors[name].to(device), union, known)
        limit = protection.joint_rank(union.dim)
        if limit is not None and union.is_factored and union.rank > limit:
            union = union.top_k(limit)
        joined.conceptors[name] = union
    return joined


def claims_of_task(
    moments: dict[str, Moments | SketchedMoments],
    sites: Mapping[str, WeightBlock],
    protection: Protection,
    claimed: Mapping[str, Conceptor],
) -> Claims:
    """Compute the conceptors of one task from its moments, and empty `moments`.

    Args:
        claimed: the conceptors of earlier tasks, for hard conceptors with a limited rank.
    """
    claims = Claims()
    for name in list(moments):  # one at a time: sums and conceptors need not all fit in memory
        sums = moments.pop(name)
        conceptor = _conceptor(name, sums, protection, claimed.get(name))
        claims.conceptors[name] = conceptor
        pull = protection.pull(name)
        if pull and not getattr(sums, "is_constant", False):  # a fixed parameter needs no pull
            odds = conceptor.odds_trace().clamp_min(1e-300)  # [g], of Q = α² R
            claims.stiffness[name] = pull * _weight_of_drift(sites[name], sums).to(odds) / odds
    return claims


def _conceptor(
    name: str,
    moments: Moments | SketchedMoments,
    protection: Protection,
    claimed: Conceptor | None,
) -> Conceptor:
    choice, hard = protection.aperture(name), protection.hard
    limit = protection.rank_of(moments.dim)
    is_full = moments.coarsest <= rounding(torch.zeros(0, dtype=torch.float32))
    if protection.claims_all(name) and limit is None and is_full and isinstance(moments, Moments):
        return moments.projector(_rounding(moments))
    if isinstance(choice, float):
        limited = protection.rank_of(moments.dim) is not None
        _check_precision(name, moments, choice, limited)
        conceptor = moments.conceptor(choice)
    else:
        sigma, noise = moments.eigenvalues(), _rounding(moments)
        conceptor = moments.conceptor(choice.aperture(sigma, moments.dim, hard, noise))
    if not hard:
        return conceptor
    if limit is not None and limit < conceptor.dim:
        # directions of earlier tasks have priority
        used = 0 if claimed is None else int((claimed.singular_values > 0.5).sum(-1).max())
        conceptor = conceptor.top_k(max(0, limit - used))
    return conceptor.harden()


def _weight_of_drift(site: WeightBlock, moments: Moments | SketchedMoments) -> Tensor:
    """Compute tr R `[g]` over E|W x|², which measures drift relative to the layer's outputs.

    A layer with zero outputs, such as a new adapter, counts as having a hundredth of usual weights.
    """
    full = {id(p): site.whole(p.data) for p in site.parameters}
    matrix = site.matrix(site.parameters, full)  # [g, out, d]
    inputs, outputs = moments.output_energy(matrix)
    out, dim = matrix.shape[1:]
    least = 1e-4 * (out / (3 * dim)) * inputs.sum()
    return inputs / torch.maximum(outputs.sum(), least).clamp_min(1e-300)


def _rounding(moments: Moments | SketchedMoments) -> float:
    """Return the share of the rows' energy that may be rounding, of the rows or of their sums.

    Rounding in the sums is spread over all directions, and its negative half is cut off. Rows of
    half precision are summed in float32.
    """
    half = moments.coarsest > rounding(torch.zeros(0, dtype=torch.float32))
    sums = torch.float32 if half else torch.float64
    in_sums = math.sqrt(moments.dim) * torch.finfo(sums).eps / 2
    return max(1e-12, 4 * moments.coarsest, in_sums)


def _check_precision(
    name: str, moments: Moments | SketchedMoments, alpha: float, limited: bool
) -> None:
    """Raise ValueError if aperture² times rounding is not small: rounding would be protected.

    Rounding in the sums is relative to the largest direction. Rounding of rows in half precision
    is spread evenly over all directions, and is harmless where their number is limited.
    """
    energy = moments.energy()
    top = float(energy.max())
    in_rows = 0.0 if limited else moments.coarsest * top / moments.dim
    in_sums = torch.finfo(energy.dtype).eps * top
    if max(in_sums, in_rows) * alpha**2 <= 0.1:
        return
    if (
        in_rows * alpha**2 <= 0.1
        and isinstance(moments, Moments)
        and is_accurate(moments.correlation().double() * alpha**2)  # columns of other scales
    ):
        return
    which, remedy = "float64", ""
    if in_rows > in_sums:
        which, remedy = "half precision", ", or call remember outside autocast"
    raise ValueError(
        f"{which} is too coarse for aperture {alpha} at layer {name!r}: its inputs have a mean "
        f"square norm of {top:.3g}, so rounding errors would count as protected directions. Lower "
        f"the aperture{remedy}"
    )


def _has_grown(name: str, claimed: Conceptor, sites: Mapping[str, WeightBlock]) -> bool:
    """Whether a vocabulary has more tokens than were remembered; ValueError for other changes."""
    if name not in sites:
        return False
    groups, dim = sites[name].size
    before = claimed.batch_shape[0]
    if (groups, dim) == (before, claimed.dim):
        return False
    if sites[name].has_more_tokens(claimed):
        return True
    had, has = (
        f"{d} inputs" if g == 1 else f"{g} groups of {d}"
        for g, d in [(before, claimed.dim), (groups, dim)]
    )
    raise ValueError(
        f"layer {name!r} has {has} now (biases included) and had {had} when tasks were "
        f"remembered, so its protected directions do not fit its inputs. Only outputs and tokens "
        f"may be added. For new inputs add a layer beside it, or create a new Shield and remember "
        f"the old tasks' data again"
    )


def _with_tokens(conceptor: Conceptor, count: int) -> Conceptor:
    form = conceptor.form
    if isinstance(form, OddsForm):
        return Conceptor.from_form(OddsForm(_longer(form.matrix, count), form.dtype))
    vectors, odds, rest = form.spectrum()
    parts = Spectrum(_longer(vectors, count, 1.0), _longer(odds, count), rest)
    return Conceptor.from_form(SpectrumForm(parts, form.dtype))


def _longer(x: Tensor, count: int, value: float = 0.0) -> Tensor:
    """Extend x to `[count, ...]` with a value."""
    return torch.cat([x, x.new_full((count - len(x), *x.shape[1:]), value)])


def _stowed(conceptor: Conceptor) -> Conceptor:
    if conceptor.dim < _STOWED or conceptor.device.type != "cuda":
        return conceptor
    return conceptor.mapped(lambda tensor, _: tensor.cpu())
