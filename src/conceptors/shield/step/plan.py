"""The plan of one optimizer: all work around its steps, until the context changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors._internal.precision import exactly
from conceptors.shield.blocks import WeightBlock, is_sharded
from conceptors.shield.distributed import gather_rows, versions
from conceptors.shield.step.batched import in_turn, recorded, together
from conceptors.shield.step.choose import choose, rate
from conceptors.shield.step.context import Context
from conceptors.shield.step.extras import Extras, make_extras
from conceptors.shield.step.factored import Factored
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.gradients import Gradients
from conceptors.shield.step.memory import Memory, both
from conceptors.shield.step.passing import Passing
from conceptors.shield.step.strategy import Strategy, Way


@dataclass
class SteppedBlock:
    """A block, or one of its parameters, as one optimizer steps it."""

    name: str
    active: list[nn.Parameter]
    way: Way
    strategy: Strategy
    snapshot_survives_step: bool = True  # no other block shares its memory
    cut_by_rows: bool = False  # sharded: this process has some of its rows
    gathered: bool = False  # sharded in another way: all processes read it together

    @property
    def is_stepped(self) -> bool:
        """Whether any of its parameters has a gradient."""
        return any(p.grad is not None for p in self.active)

    @property
    def is_followed(self) -> bool:
        """Whether its note is updated from step to step."""
        return self.snapshot_survives_step and self.way.corrects


@dataclass
class Work:
    """The functions that are called around a step, with equal blocks merged."""

    followed: list[Strategy] = field(default_factory=list)  # note when weights have changed
    gathered: list[Strategy] = field(default_factory=list)  # note together on all processes
    noted: list[Strategy] = field(default_factory=list)  # note before every step
    project: Callable[[], None] = lambda: None
    correct: Callable[[], None] = lambda: None
    scales: list[Tensor] = field(default_factory=list)  # of the pulls, one tensor per device
    versions: list[tuple[int, int]] | None = None  # of all parameters after the last step


@dataclass
class StepPlan:
    """The blocks of one optimizer, and the work around its steps."""

    key: object = None  # of the context and the optimizer
    blocks: list[SteppedBlock] = field(default_factory=list)
    gradients: Gradients = field(default_factory=lambda: Gradients({}, []))
    work: Work = field(default_factory=Work)
    extras: Extras = field(default_factory=Extras)
    passing: Passing = field(default_factory=Passing)

    def __bool__(self) -> bool:
        return bool(self.blocks or self.extras)

    def is_outrun(self, optimizer: Optimizer) -> bool:
        """Whether learning rates have become too large for the stiffness of the pulls."""
        if self.extras.fastest == math.inf:
            return False
        groups = [g for g in optimizer.param_groups if not isinstance(g["lr"], Tensor)]
        return max(map(rate, groups), default=0.0) > self.extras.fastest

    @property
    def in_step(self) -> bool:
        """Whether a step has begun and is not corrected yet, also after Ctrl-C."""
        return self.extras.frozen.saved is not None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters of all blocks."""
        return (p for block in self.blocks for p in block.active)

    def is_known(self) -> bool:
        """Whether the weights are unchanged since the last step, by their version counters."""
        return self.work.versions == self._versions()

    def _versions(self) -> list[tuple[int, int]]:
        return [versions(p) for p in self.parameters()]

    def note(self) -> None:
        """Note the weights before a step, as far as they have changed."""
        work, now, before = self.work, self._versions(), self.work.versions or []
        stale = list(work.noted)
        if now != before:
            stale += work.followed
        # not after a change of one process's part only: the others would not gather
        if [joint for joint, _ in now] != [joint for joint, _ in before]:
            stale += work.gathered
        if stale:
            with exactly():
                for strategy in stale:
                    strategy.note()

    @exactly()
    def moved(self) -> dict[str, float]:
        """Compute how far blocks have moved since the last step, relative to their claimed part."""
        if self.work.versions is None:
            return {}
        sizes = {
            b.name: b.strategy.moved(b.way.once)
            for b in self.blocks
            if b.is_followed and not b.gathered
        }
        numbers = {name: size.tolist() for name, size in sizes.items()}
        return {n: math.sqrt(max(0.0, d) / max(w, 1e-30)) for n, (d, w) in numbers.items()}

    @exactly()
    def adopt(self, other: StepPlan) -> None:
        """Adopt the notes and measurements of another plan for the same parameters."""
        is_noted = other.in_step or other.work.versions is not None
        noted = {
            (b.name, *map(id, b.active)): b.strategy.noted
            for b in other.blocks
            if b.way.corrects and is_noted
        }
        for block in self.blocks:
            before = noted.get((block.name, *map(id, block.active)))
            if before is not None and before.shape == block.strategy.noted.shape:
                block.strategy.noted.copy_(before)
            else:
                block.strategy.note()
        self.passing, self.extras.frozen.saved = other.passing, other.extras.frozen.saved
        self.extras.frozen.ratios = other.extras.frozen.ratios
        self.work.versions = []  # the weights are unknown

    def is_of(self, version: int) -> bool:
        """Whether this plan is for this version of the context."""
        return isinstance(self.key, tuple) and self.key[0] == version

    def project(self, scale: Tensor | None) -> None:
        """Replace the gradients by projected ones; `scale` is that of a gradient scaler."""
        for factor in self.work.scales:
            factor.fill_(1.0) if scale is None else factor.copy_(scale)
        due = self.passing.is_due()
        self.gradients.take(all_of_them=due)
        if due:
            with exactly():
                for block in self.blocks:
                    if block.is_stepped:
                        self.passing.add(block.name, block.strategy.passing(block.way.once))
        self.work.project()
        self.gradients.give()

    def correct(self) -> None:
        """Project the step of the optimizer."""
        self.work.correct()
        self.work.versions = self._versions()
        self.extras.frozen.restore()

    def notes(self) -> dict[str, Tensor]:
        """Return the notes that a run needs to resume bit for bit; see `Factored.resume`."""
        if self.work.versions is None:
            return {}
        return {
            b.name: gather_rows(b.strategy.noted, b.active[0])
            if b.cut_by_rows
            else b.strategy.noted.clone()
            for b in self.blocks
            if b.is_followed and isinstance(b.strategy, Factored)
        }

    def close(self) -> None:
        """Restore the user's gradients."""
        self.gradients.give_back(late=True)


class PlannedPart(NamedTuple):
    """Parameters of a block that are projected together, with their own free space."""

    name: str
    site: WeightBlock
    parameters: list[nn.Parameter]
    free: FreeSpace
    way: Way
    crossed: bool  # another block shares some of its memory


def make_plan(
    optimizer: Optimizer, context: Context, key: object, looked_at: bool = False
) -> StepPlan:
    """Create the plan of an optimizer; for `looked_at` see `choose`."""
    stepped = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    resumed = context.protected.resumed
    parts = list(_parts(optimizer, stepped, context, looked_at))
    plan = StepPlan(
        key, gradients=_gradients(parts, stepped), extras=make_extras(optimizer, context)
    )
    scales: dict[torch.device, Tensor] = {}
    for part in parts:
        device = part.parameters[0].device
        scale = scales.setdefault(device, torch.ones((), device=device))
        weights, gradients = both(part.site, part.parameters, plan.gradients.of)
        anchor = _anchor(part, weights, context.protected.anchors)
        strategy = part.way.make(part.free, weights, gradients, anchor, scale, part.way)
        sharded = any(is_sharded(p.data) for p in part.parameters)
        by_rows = part.site.block.rows_first
        plan.blocks.append(
            SteppedBlock(
                part.name,
                part.parameters,
                part.way,
                strategy,
                snapshot_survives_step=not (part.crossed or context.increment_decay),
                cut_by_rows=sharded and by_rows,
                gathered=sharded and not by_rows,
            )
        )
    is_resumed = bool(resumed) and all(_resume(block, resumed) for block in plan.blocks)
    plan.work = _arrange(plan.blocks)
    plan.work.scales = list(scales.values())
    if any(part.free.stiffness is not None and part.way.stiffest < math.inf for part in parts):
        plan.extras.fastest = 2 * max(map(rate, optimizer.param_groups))
    if is_resumed:  # otherwise the first step notes all weights
        plan.work.versions = plan._versions()
    return plan


def _resume(block: SteppedBlock, resumed: Mapping[str, Tensor]) -> bool:
    """Restore a block's note from a checkpoint; return whether its weights are known now."""
    if not (block.is_followed and isinstance(block.strategy, Factored)):
        return not isinstance(block.strategy, Factored) or block.name in resumed
    return block.name in resumed and block.strategy.resume(resumed[block.name])


def _parts(
    optimizer: Optimizer, stepped: Mapping[int, Any], context: Context, looked_at: bool
) -> Iterator[PlannedPart]:
    """Yield the claimed parts that an optimizer steps; `stepped` maps parameters to groups."""
    protected, guarded = context.protected, context.callbacks.optimizer_counts()
    for name, site in protected.sites.items():
        active = [p for p in site.active() if id(p) in guarded]
        crossed = any(site.crosses(other) for other in protected.sites.values())
        # only projections of single parameters commute with those of the other block
        for parameters in [[p] for p in active] if crossed else [active]:
            groups = [stepped[id(p)] for p in parameters if id(p) in stepped]
            free = protected.free(name, parameters) if groups else None
            if free is not None and not free.is_all:
                way = choose(parameters, free, optimizer, groups, looked_at)
                yield PlannedPart(name, site, parameters, free, way, crossed)


def _gradients(parts: list[PlannedPart], stepped: Mapping[int, Any]) -> Gradients:
    """Create copies of the gradients that are projected."""
    copies: dict[int, tuple[nn.Parameter, Tensor]] = {}
    given: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for part in parts:
        copies |= {id(p): (p, torch.empty_like(part.site.read(p))) for p in part.parameters}
        projected = [p for p in part.parameters if id(p) in stepped and part.way.projects]
        # a step that is not projected is in the free space only as a whole
        for group in [projected] if part.way.once and projected else [[p] for p in projected]:
            given[tuple(id(p) for p in group)] = group
    used = {id(p) for part in parts if part.way.projects for p in part.parameters}
    return Gradients(copies, list(given.values()), copies.keys() - used)


def _anchor(part: PlannedPart, weights: Memory, anchors: Mapping[int, Tensor]) -> Tensor | None:
    """Return W_before `[g, out, d]` of a part with a pull, in the weights' memory order."""
    parameters = part.parameters
    if part.free.stiffness is None or any(id(p) not in anchors for p in parameters):
        return None
    before = {id(p): part.site.plain(anchors[id(p)].to(p.device, p.dtype)) for p in parameters}
    order = torch.cat(weights.columns).to(parameters[0].device)
    return part.site.matrix(parameters, before)[..., order]


def _as_one(work: list[Callable[[], None]]) -> list[Callable[[], None]]:
    return [in_turn(work)] if work else []


def _arrange(blocks: list[SteppedBlock]) -> Work:
    """Merge equal blocks, and on a GPU record their work."""
    work = Work()
    projects: dict[torch.device, list[Callable[[], None]]] = {}
    corrects: dict[torch.device, list[Callable[[], None]]] = {}
    static = not any(is_sharded(p.data) for b in blocks for p in b.active)
    groups: dict[tuple[torch.device, bool, bool, bool, bool], list[Strategy]] = {}
    for b in blocks:
        kind = (b.active[0].device, b.snapshot_survives_step, b.gathered)
        groups.setdefault((*kind, b.way.corrects, b.way.projects), []).append(b.strategy)
    for (device, lasting, gathered, corrects_steps, projects_too), group in groups.items():
        merged = together(group) if device.type == "cuda" and lasting and static else group
        if corrects_steps:
            follow = work.gathered if gathered else work.followed
            (follow if lasting else work.noted).extend(merged)
        # without corrections, the note serves only the pull of the current weights
        project = [
            s.project if corrects_steps or s.pull is None else in_turn([s.note, s.project])
            for s in merged
            if projects_too
        ]
        correct = [s.correct for s in merged] if corrects_steps else []
        # pieces are recorded in parallel, but crossing blocks share memory and run in turn
        projects.setdefault(device, []).extend(project if lasting else _as_one(project))
        corrects.setdefault(device, []).extend(correct if lasting else _as_one(correct))
    work.project = in_turn([recorded(p, d, static) for d, p in projects.items() if p])
    work.correct = in_turn([recorded(c, d, static) for d, c in corrects.items() if c])
    return work
