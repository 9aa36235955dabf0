"""What a shield has remembered: the space claimed so far, and, if wanted, every task's share."""

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
from conceptors.shield.remember.moments import Moments, SketchedMoments, rounding
from conceptors.shield.step.context import Claim

_LEAST = 0.02  # singular values up to this count as free under an automatic aperture
_STOWED = 2048  # layers of so many inputs keep their claims off the GPU


@dataclass
class Claims:
    """Conceptors layer by layer, and how stiffly layers are pulled back.

    Attributes:
        conceptors: A, or those of one task; a batch of one conceptor per group.
        stiffness: c `[g]` of the layers that are pulled back, see `FreeSpace.pull`.
    """

    conceptors: dict[str, Conceptor] = field(default_factory=dict)
    stiffness: dict[str, Tensor] = field(default_factory=dict)

    def with_tokens(self, counts: Mapping[str, int]) -> Claims:
        """Of vocabularies that have so many tokens now; nothing is claimed of the new ones."""
        conceptors, stiffness = dict(self.conceptors), dict(self.stiffness)
        for name, count in counts.items():
            if name in conceptors:
                conceptors[name] = _with_tokens(conceptors[name], count)
            if name in stiffness:
                stiffness[name] = _longer(stiffness[name], count)
        return Claims(conceptors, stiffness)

    def stowed(self) -> Claims:
        """With large matrices in main memory: a GPU has better use for its own."""
        return Claims({name: _stowed(c) for name, c in self.conceptors.items()}, self.stiffness)


@dataclass
class Remembered:
    """All tasks together, and one by one where they are kept apart."""

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
        """One more task, `known` so far before it was learned; `keep` it apart too."""
        claimed = join(self.claimed, task, sites, protection, known)
        tasks = [*self.tasks, task.stowed()] if keep else self.tasks
        return Remembered(claimed, tasks, self.n_tasks + 1)

    def without_task(
        self, index: int, sites: Mapping[str, WeightBlock], protection: Protection
    ) -> Remembered:
        """All tasks but one, which were kept apart; each claims in full what it uses."""
        tasks = [task for i, task in enumerate(self.tasks) if i != index]
        claimed = Claims()
        for task in tasks:
            claimed = join(claimed, task, sites, protection)
        return Remembered(claimed, tasks, self.n_tasks - 1)

    def fitted(self, sites: Mapping[str, WeightBlock]) -> Remembered:
        """The same for layers as they are now: a vocabulary may have grown.

        Raises:
            ValueError: a layer's inputs are not those that were remembered.
        """
        grown = [
            name for name, held in self.claimed.conceptors.items() if _grows(name, held, sites)
        ]
        if not grown:
            return self
        more = {name: sites[name].size[0] for name in grown}
        tasks = [task.with_tokens(more) for task in self.tasks]
        return Remembered(self.claimed.with_tokens(more), tasks, self.n_tasks)

    def quota(self, name: str) -> float:
        """How much of a layer's input space is claimed."""
        if name not in self.claimed.conceptors:
            return 0.0
        if name not in self._quotas:
            self._quotas[name] = float(self.claimed.conceptors[name].quota.mean())
        return self._quotas[name]

    def claims(self, sites: Iterable[str], protection: Protection) -> dict[str, Claim]:
        """What guards are told of the layers with these names."""
        found = {}
        for name in sites:
            conceptor = self.claimed.conceptors.get(name)
            if conceptor is not None:
                auto = protection.is_auto(name)
                found[name] = Claim(
                    conceptor,
                    rank=protection.rank_of(conceptor.dim),
                    least=_LEAST if auto else 0.0,
                    stiffness=self.claimed.stiffness.get(name) if auto else None,
                    room=protection.room(name) if conceptor.dim > 2 else 0.0,
                )
        return found


def join(
    claimed: Claims,
    task: Claims,
    sites: Mapping[str, WeightBlock],
    protection: Protection,
    known: float = 0.0,
) -> Claims:
    """A ∨ C at every site, and stiffness added up; sketched ones stay within their rank.

    With c such that c Q is the sum of all tasks' stiffness: a mean, weighted by tr Q. What is
    shared counts less by `known`, see `join_novel`.
    """
    found = Claims(dict(claimed.conceptors), dict(claimed.stiffness))
    for name, new in task.stiffness.items():
        old = claimed.stiffness.get(name)
        if old is None or name not in claimed.conceptors:
            found.stiffness[name] = new
            continue
        before, now = (c.conceptors[name].odds_trace().to(new) for c in (claimed, task))
        total = (before + now).clamp_min(1e-300)
        found.stiffness[name] = (old.to(new) * before + new * now) / total
    for name, conceptor in task.conceptors.items():
        site = sites.get(name)
        device = conceptor.device if site is None else site.parameters[0].device
        both = conceptor.to(device)
        if name in claimed.conceptors:
            both = join_novel(claimed.conceptors[name].to(device), both, known)
        limit = protection.joint_rank(both.dim)
        if limit is not None and both.is_factored and both.rank > limit:
            both = both.top_k(limit)
        found.conceptors[name] = both
    return found


def claims_of_task(
    moments: dict[str, Moments | SketchedMoments],
    sites: Mapping[str, WeightBlock],
    protection: Protection,
    held: Mapping[str, Conceptor],
) -> Claims:
    """The conceptors of one task's rows; `moments` is emptied on the way.

    Args:
        held: what is claimed already, for hard conceptors with a limited rank.
    """
    found = Claims()
    for name in list(moments):  # one at a time: sums and conceptors need not all fit at once
        own = moments.pop(name)
        conceptor = _conceptor(name, own, protection, held.get(name))
        found.conceptors[name] = conceptor
        pull = protection.pull(name)
        if pull and not getattr(own, "is_constant", False):  # what is held needs no pull
            odds = conceptor.odds_trace().clamp_min(1e-300)  # [g], of Q = α² R
            found.stiffness[name] = pull * _weight_of_drift(sites[name], own).to(odds) / odds
    return found


def _conceptor(
    name: str,
    moments: Moments | SketchedMoments,
    protection: Protection,
    held: Conceptor | None,
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
        # directions of earlier tasks come first; new ones take what is left
        taken = 0 if held is None else int((held.singular_values > 0.5).sum(-1).max())
        conceptor = conceptor.top_k(max(0, limit - taken))
    return conceptor.harden()


def _weight_of_drift(site: WeightBlock, moments: Moments | SketchedMoments) -> Tensor:
    """tr R `[g]` over E|W x|², so that drift is seen in units of what the layer gives out.

    A layer that gives out nothing, as adapters do at first, has a hundredth of usual weights.
    """
    whole = {id(p): site.whole(p.data) for p in site.parameters}
    matrix = site.matrix(site.parameters, whole)  # [g, out, d]
    inputs, outputs = moments.output_energy(matrix)
    out, dim = matrix.shape[1:]
    least = 1e-4 * (out / (3 * dim)) * inputs.sum()
    return inputs / torch.maximum(outputs.sum(), least).clamp_min(1e-300)


def _rounding(moments: Moments | SketchedMoments) -> float:
    """The share of rows' energy that may be nothing but rounding: of rows and those before them.

    Rounding in the sums is spread over all directions, and its negative half is cut off. Rows of
    half precision are summed up in float32.
    """
    half = moments.coarsest > rounding(torch.zeros(0, dtype=torch.float32))
    sums = torch.float32 if half else torch.float64
    in_sums = math.sqrt(moments.dim) * torch.finfo(sums).eps / 2
    return max(1e-12, 4 * moments.coarsest, in_sums)


def _check_precision(
    name: str, moments: Moments | SketchedMoments, alpha: float, limited: bool
) -> None:
    """Singular values mean nothing where aperture² times rounding is not small.

    Rounding in the sums counts against the largest direction. That of rows in half precision is
    spread evenly over all directions, and does no harm where their number is limited.
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
        which, remedy = "half precision", ", or remember outside of autocast, in float32"
    raise ValueError(
        f"{which} is too small for aperture {alpha} at layer {name!r}: with activations of this "
        f"size (mean square norm {top:.3g}), rounding errors count as directions in use; lower "
        f"the aperture{remedy}"
    )


def _grows(name: str, held: Conceptor, sites: Mapping[str, WeightBlock]) -> bool:
    """Whether a vocabulary has more tokens than were remembered; ValueError for other changes."""
    if name not in sites:
        return False
    groups, dim = sites[name].size
    before = held.batch_shape[0]
    if (groups, dim) == (before, held.dim):
        return False
    if sites[name].has_more_tokens(held):
        return True
    had, has = (
        f"{d} inputs" if g == 1 else f"{g} groups of {d}"
        for g, d in [(before, held.dim), (groups, dim)]
    )
    raise ValueError(
        f"layer {name!r} has {has} now (biases among them), and had {had} when tasks were "
        f"remembered: what these claim says nothing about new inputs. A layer may get more "
        f"outputs, and a vocabulary more tokens; for more inputs add a layer beside it, or make a "
        f"new Shield and remember the old tasks' data again"
    )


def _with_tokens(conceptor: Conceptor, count: int) -> Conceptor:
    form = conceptor.form
    if isinstance(form, OddsForm):
        return Conceptor.from_form(OddsForm(_longer(form.matrix, count), form.dtype))
    vectors, odds, rest = form.spectrum()
    parts = Spectrum(_longer(vectors, count, 1.0), _longer(odds, count), rest)
    return Conceptor.from_form(SpectrumForm(parts, form.dtype))


def _longer(x: Tensor, count: int, value: float = 0.0) -> Tensor:
    """`[count, ...]`, with that value at the end."""
    return torch.cat([x, x.new_full((count - len(x), *x.shape[1:]), value)])


def _stowed(conceptor: Conceptor) -> Conceptor:
    if conceptor.dim < _STOWED or conceptor.device.type != "cuda":
        return conceptor
    return conceptor.mapped(lambda tensor, _: tensor.cpu())
