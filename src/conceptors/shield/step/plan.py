"""All that has to be done around the steps of one optimizer, until something changes."""

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
from conceptors.shield.shards import gather_rows, versions
from conceptors.shield.step.batched import in_turn, recorded, together
from conceptors.shield.step.choose import choose, rate
from conceptors.shield.step.context import Context
from conceptors.shield.step.factored import Factored
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.gradients import Gradients
from conceptors.shield.step.memory import Memory, both
from conceptors.shield.step.passing import Passing
from conceptors.shield.step.rest import Rest, make_rest
from conceptors.shield.step.strategy import Strategy, Way


@dataclass
class SteppedBlock:
    """A site, or one parameter of it, as an optimizer steps it."""

    name: str
    active: list[nn.Parameter]
    way: Way
    strategy: Strategy
    snapshot_survives_step: bool = True  # its note may follow the steps, its memory is its own
    cut_by_rows: bool = False  # sharded: this process has some rows of it, and of its note
    gathered: bool = False  # sharded in another way: all processes read it, together

    @property
    def is_stepped(self) -> bool:
        """Whether it has gradients to project."""
        return any(p.grad is not None for p in self.active)

    @property
    def is_followed(self) -> bool:
        """Whether its note follows from step to step."""
        return self.snapshot_survives_step and self.way.corrects


@dataclass
class Work:
    """What is called around a step, for several blocks at once where they are alike."""

    followed: list[Strategy] = field(default_factory=list)  # noted when weights have changed
    gathered: list[Strategy] = field(default_factory=list)  # the same, by all processes together
    noted: list[Strategy] = field(default_factory=list)  # before every step
    project: Callable[[], None] = lambda: None
    correct: Callable[[], None] = lambda: None
    scales: list[Tensor] = field(default_factory=list)  # of the pulls, one per device
    versions: list[tuple[int, int]] | None = None  # of all parameters after the last step


@dataclass
class StepPlan:
    """The blocks of one optimizer, and what is done with them."""

    key: object = None  # of the context and the optimizer
    blocks: list[SteppedBlock] = field(default_factory=list)
    gradients: Gradients = field(default_factory=lambda: Gradients({}, []))
    work: Work = field(default_factory=Work)
    rest: Rest = field(default_factory=Rest)
    passing: Passing = field(default_factory=Passing)

    def __bool__(self) -> bool:
        return bool(self.blocks or self.rest)

    def is_outrun(self, optimizer: Optimizer) -> bool:
        """Whether learning rates are too large by now for pulls as stiff as they were made."""
        if self.rest.fastest == math.inf:
            return False
        groups = [g for g in optimizer.param_groups if not isinstance(g["lr"], Tensor)]
        return max(map(rate, groups), default=0.0) > self.rest.fastest

    @property
    def in_step(self) -> bool:
        """Whether a step has begun and is not corrected yet; also after Ctrl-C."""
        return self.rest.frozen.kept is not None

    def parameters(self) -> Iterator[nn.Parameter]:
        """All whose gradients are looked at."""
        return (p for block in self.blocks for p in block.active)

    def is_known(self) -> bool:
        """Whether weights are as the last step left them, as far as their version counters tell."""
        return self.work.versions == self._versions()

    def _versions(self) -> list[tuple[int, int]]:
        return [versions(p) for p in self.parameters()]

    def note(self) -> None:
        """Know the weights before a step."""
        work, now, before = self.work, self._versions(), self.work.versions or []
        stale = list(work.noted)
        if now != before:
            stale += work.followed
        # not for a change of one process's part: the others would not come to gather
        if [whole for whole, _ in now] != [whole for whole, _ in before]:
            stale += work.gathered
        if stale:
            with exactly():
                for strategy in stale:
                    strategy.note()

    @exactly()
    def moved(self) -> dict[str, float]:
        """How far blocks were moved since the last step, relative to what is claimed of them."""
        if self.work.versions is None:
            return {}
        sizes = {
            b.name: b.strategy.moved(b.way.once)
            for b in self.blocks
            if b.is_followed and not b.gathered
        }
        found = {name: size.tolist() for name, size in sizes.items()}
        return {n: math.sqrt(max(0.0, d) / max(w, 1e-30)) for n, (d, w) in found.items()}

    @exactly()
    def adopt(self, other: StepPlan) -> None:
        """Take over what another plan for the same parameters has noted, and seen."""
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
        self.passing, self.rest.frozen.kept = other.passing, other.rest.frozen.kept
        self.rest.frozen.ratios = other.rest.frozen.ratios
        self.work.versions = []  # the weights are not known

    def is_of(self, version: int) -> bool:
        """Whether it was made for this version of the context."""
        return isinstance(self.key, tuple) and self.key[0] == version

    def project(self, scale: Tensor | None) -> None:
        """Give the optimizer projected gradients; `scale` is of a gradient scaler."""
        for held in self.work.scales:
            held.fill_(1.0) if scale is None else held.copy_(scale)
        due = self.passing.is_due()
        self.gradients.take(all_of_them=due)
        if due:
            with exactly():
                for block in self.blocks:
                    if block.is_stepped:
                        self.passing.see(block.name, block.strategy.passing(block.way.once))
        self.work.project()
        self.gradients.give()

    def correct(self) -> None:
        """Project the step that was made."""
        self.work.correct()
        self.work.versions = self._versions()
        self.rest.frozen.put_back()

    def notes(self) -> dict[str, Tensor]:
        """What a run in the middle of a task needs to resume bit for bit: see `Factored.resume`."""
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
        """Take ours off the user's gradients."""
        self.gradients.give_back(late=True)


class Part(NamedTuple):
    """Parameters of a site that are projected together, in a free space of their own."""

    name: str
    site: WeightBlock
    own: list[nn.Parameter]
    free: FreeSpace
    way: Way
    crossed: bool  # another site has some of the same numbers


def make_plan(
    optimizer: Optimizer, context: Context, key: object, looked_at: bool = False
) -> StepPlan:
    """What an optimizer's steps need, as things are now; for `looked_at` see `choose`."""
    stepped = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    resumed = context.protected.resumed
    parts = list(_parts(optimizer, stepped, context, looked_at))
    plan = StepPlan(key, gradients=_gradients(parts, stepped), rest=make_rest(optimizer, context))
    scales: dict[torch.device, Tensor] = {}
    for part in parts:
        device = part.own[0].device
        scale = scales.setdefault(device, torch.ones((), device=device))
        weights, gradients = both(part.site, part.own, plan.gradients.of)
        anchor = _anchor(part, weights, context.protected.anchors)
        strategy = part.way.make(part.free, weights, gradients, anchor, scale, part.way)
        sharded = any(is_sharded(p.data) for p in part.own)
        by_rows = part.site.block.rows_first
        plan.blocks.append(
            SteppedBlock(
                part.name,
                part.own,
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
        plan.rest.fastest = 2 * max(map(rate, optimizer.param_groups))
    if is_resumed:  # else the first step notes all weights
        plan.work.versions = plan._versions()
    return plan


def _resume(block: SteppedBlock, resumed: Mapping[str, Tensor]) -> bool:
    """Whether the weights of a block are known, from a checkpoint's note or without one."""
    if not (block.is_followed and isinstance(block.strategy, Factored)):
        return not isinstance(block.strategy, Factored) or block.name in resumed
    return block.name in resumed and block.strategy.resume(resumed[block.name])


def _parts(
    optimizer: Optimizer, stepped: Mapping[int, Any], context: Context, looked_at: bool
) -> Iterator[Part]:
    """What an optimizer changes of what is claimed; `stepped` are its groups by parameter."""
    protected, held = context.protected, context.keeper.held()
    for name, site in protected.sites.items():
        active = [p for p in site.active() if id(p) in held]
        crossed = any(site.crosses(other) for other in protected.sites.values())
        # only projections of single parameters commute with those of the other site
        for own in [[p] for p in active] if crossed else [active]:
            groups = [stepped[id(p)] for p in own if id(p) in stepped]
            free = protected.free(name, own) if groups else None
            if free is not None and not free.is_all:
                way = choose(own, free, optimizer, groups, looked_at)
                yield Part(name, site, own, free, way, crossed)


def _gradients(parts: list[Part], stepped: Mapping[int, Any]) -> Gradients:
    """Copies of the gradients that are projected."""
    copies: dict[int, tuple[nn.Parameter, Tensor]] = {}
    given: dict[tuple[int, ...], list[nn.Parameter]] = {}
    for part in parts:
        copies |= {id(p): (p, torch.empty_like(part.site.read(p))) for p in part.own}
        some = [p for p in part.own if id(p) in stepped and part.way.projects]
        # a step that is left alone is in the free space only as a whole
        for row in [some] if part.way.once and some else [[p] for p in some]:
            given[tuple(id(p) for p in row)] = row
    used = {id(p) for part in parts if part.way.projects for p in part.own}
    return Gradients(copies, list(given.values()), copies.keys() - used)


def _anchor(part: Part, weights: Memory, anchors: Mapping[int, Tensor]) -> Tensor | None:
    """W_before `[g, out, d]` of what is pulled back, its columns in the order of the weights'."""
    if part.free.stiffness is None or any(id(p) not in anchors for p in part.own):
        return None
    before = {id(p): part.site.plain(anchors[id(p)].to(p.device, p.dtype)) for p in part.own}
    order = torch.cat(weights.columns).to(part.own[0].device)
    return part.site.matrix(part.own, before)[..., order]


def _as_one(work: list[Callable[[], None]]) -> list[Callable[[], None]]:
    return [in_turn(work)] if work else []


def _arrange(blocks: list[SteppedBlock]) -> Work:
    """Alike blocks together, and on a GPU recorded."""
    work = Work()
    projects: dict[torch.device, list[Callable[[], None]]] = {}
    corrects: dict[torch.device, list[Callable[[], None]]] = {}
    static = not any(is_sharded(p.data) for b in blocks for p in b.active)
    alike: dict[tuple[torch.device, bool, bool, bool, bool], list[Strategy]] = {}
    for b in blocks:
        does = (b.way.corrects, b.way.projects)
        kind = (b.active[0].device, b.snapshot_survives_step, b.gathered, *does)
        alike.setdefault(kind, []).append(b.strategy)
    for (device, lasting, gathered, steps, projects_too), own in alike.items():
        merged = together(own) if device.type == "cuda" and lasting and static else own
        if steps:
            follow = work.gathered if gathered else work.followed
            (follow if lasting else work.noted).extend(merged)
        # without corrections a note serves the pull alone, which is of the weights of now
        project = [
            s.project if steps or s.pull is None else in_turn([s.note, s.project])
            for s in merged
            if projects_too
        ]
        correct = [s.correct for s in merged] if steps else []
        # pieces are recorded side by side, but what crosses shares memory: one after the other
        projects.setdefault(device, []).extend(project if lasting else _as_one(project))
        corrects.setdefault(device, []).extend(correct if lasting else _as_one(correct))
    work.project = in_turn([recorded(p, d, static) for d, p in projects.items() if p])
    work.correct = in_turn([recorded(c, d, static) for d, c in corrects.items() if c])
    return work
