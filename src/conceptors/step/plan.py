"""All that has to be done around the steps of one optimizer, until something changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors.precision import exactly
from conceptors.sites import is_sharded
from conceptors.step.batched import in_turn, recorded, together
from conceptors.step.choose import Way, choose
from conceptors.step.context import Context
from conceptors.step.factored import Factored
from conceptors.step.gradients import Gradients
from conceptors.step.inputs import Inlet
from conceptors.step.memory import both
from conceptors.step.passing import Passing
from conceptors.step.strategy import Strategy


@dataclass
class Block:
    """A site, or one parameter of it, as an optimizer steps it."""

    name: str
    active: list[nn.Parameter]
    way: Way
    strategy: Strategy | None = None  # None: its inputs are projected
    inlet: Inlet | None = None
    lasting: bool = True  # its note follows from step to step

    @property
    def is_stepped(self) -> bool:
        """Whether it has gradients of its own to project."""
        return self.strategy is not None and any(p.grad is not None for p in self.active)


@dataclass
class Work:
    """What is called around a step, for several blocks at once where they are alike."""

    followed: list[Strategy] = field(default_factory=list)  # noted when weights have changed
    noted: list[Strategy] = field(default_factory=list)  # before every step
    project: Callable[[], None] = lambda: None
    correct: Callable[[], None] = lambda: None
    scales: list[Tensor] = field(default_factory=list)  # of the pulls, one a device
    versions: list[int] | None = None  # of all parameters after the last step


@dataclass
class Rest:
    """What a step does beside projecting: some stay where they are, some are drawn back."""

    frozen: list[nn.Parameter] = field(default_factory=list)
    decayed: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)
    rate: float = 0.0  # 2 λ

    def __bool__(self) -> bool:
        return bool(self.frozen or self.decayed)

    def decay(self, optimizer: Optimizer) -> None:
        """W ← W - η 2 λ (W - W_previous), apart from the projection (Algorithm 2)."""
        rates = {id(p): g.get("lr", 1.0) for g in optimizer.param_groups for p in g["params"]}
        for parameter, anchor in self.decayed:
            parameter.data.sub_((parameter.data - anchor) * (self.rate * rates[id(parameter)]))


@dataclass
class Plan:
    """The blocks of one optimizer, and what is done with them."""

    key: object = None  # of the context and the optimizer
    blocks: list[Block] = field(default_factory=list)
    gradients: Gradients = field(default_factory=lambda: Gradients({}, []))
    work: Work = field(default_factory=Work)
    rest: Rest = field(default_factory=Rest)
    passing: Passing = field(default_factory=Passing)

    def __bool__(self) -> bool:
        return bool(self.blocks or self.rest)

    def parameters(self) -> Iterator[nn.Parameter]:
        """All whose gradients are looked at."""
        return (p for block in self.blocks if block.strategy is not None for p in block.active)

    def note(self) -> None:
        """Know the weights before a step."""
        work = self.work
        if work.versions != [p._version for p in self.parameters()]:
            for strategy in work.followed:
                strategy.note()
        for strategy in work.noted:
            strategy.note()

    def project(self, scale: Tensor | None) -> None:
        """Give the optimizer projected gradients; `scale` is of a gradient scaler."""
        for held in self.work.scales:
            held.fill_(1.0) if scale is None else held.copy_(scale)
        self.gradients.take()
        if self.passing.is_due():
            with exactly():
                for block in self.blocks:
                    if block.strategy is not None and block.is_stepped:
                        self.passing.see(block.name, block.strategy.passing(block.way.once))
        self.work.project()
        self.gradients.give()

    def correct(self) -> None:
        """Project the step that was made."""
        self.work.correct()
        self.work.versions = [p._version for p in self.parameters()]

    def notes(self) -> dict[str, Tensor]:
        """What a run in the middle of a task needs to go on bit by bit: see `Factored.resume`."""
        if self.work.versions is None:
            return {}
        found = [b for b in self.blocks if b.lasting and isinstance(b.strategy, Factored)]
        return {b.name: b.strategy.noted.clone() for b in found if isinstance(b.strategy, Factored)}

    def close(self) -> None:
        """Take all hooks off the layers."""
        for block in self.blocks:
            if block.inlet is not None:
                block.inlet.close()


def make_plan(optimizer: Optimizer, context: Context, key: object) -> Plan:
    """What an optimizer's steps need, as things are now."""
    group_of = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    held = context.held()
    plan = Plan(key)
    plan.rest = Rest(rate=2 * context.increment_decay)
    if context.claims:
        plan.rest.frozen = [p for p in context.frozen.values() if id(p) in group_of]
    parts = []
    for name, site in context.sites.items():
        active = [p for p in site.active() if id(p) in held]
        if not any(id(p) in group_of for p in active):
            continue
        if context.increment_decay:
            plan.rest.decayed += [
                (p, context.anchors[id(p)])
                for p in active
                if id(p) in group_of
                and id(p) in context.anchors
                and not any(p is q for q, _ in plan.rest.decayed)
            ]
        crossed = any(site.crosses(other) for other in context.sites.values())
        # only projections of single parameters commute with those of the other site
        for own in [[p] for p in active] if crossed else [active]:
            free = context.free(name, own)
            if free is not None and free.rank:
                parts.append((name, site, own, free, crossed))
    plan.gradients = Gradients(
        {id(p): (p, torch.empty_like(site.read(p))) for _, site, own, _, _ in parts for p in own},
        list({id(p): p for _, _, own, _, _ in parts for p in own if id(p) in group_of}.values()),
    )
    scales: dict[torch.device, Tensor] = {}
    for name, site, own, free, crossed in parts:
        groups = [group_of[id(p)] for p in own if id(p) in group_of]
        way = choose(site, own, free, optimizer, groups, context.by_inputs)
        block = Block(name, own, way)
        plan.blocks.append(block)
        if way.make is None:
            layer: Any = site.sources[0].layer
            block.inlet = Inlet(layer, free)
            continue
        device = own[0].device
        scale = scales.setdefault(device, torch.ones((), device=device))
        weights, gradients = both(site, own, plan.gradients.of)
        anchor = None
        if free.stiffness is not None and all(id(p) in context.anchors for p in own):
            before = {id(p): site.plain(context.anchors[id(p)].to(device)) for p in own}
            order = torch.cat(weights.columns).to(device)
            anchor = site.matrix(own, before)[..., order]
        block.strategy = way.make(free, weights, gradients, anchor, scale, way.once)
        sharded = any(is_sharded(p.data) for p in own)
        block.lasting = way.corrects and not (crossed or sharded or context.increment_decay)
        if block.lasting and isinstance(block.strategy, Factored) and name in context.resumed:
            block.strategy.resume(context.resumed[name])
    plan.work = _arrange(plan.blocks)
    plan.work.scales = list(scales.values())
    if all(b.name in context.resumed for b in plan.blocks if isinstance(b.strategy, Factored)):
        plan.work.versions = [p._version for p in plan.parameters()] if context.resumed else None
    return plan


def _arrange(blocks: list[Block]) -> Work:
    """Alike blocks together, and on a GPU recorded."""
    work = Work()
    projects: dict[torch.device, list[Strategy]] = {}
    corrects: dict[torch.device, list[Strategy]] = {}
    for lasting in (True, False):
        for steps in (True, False):
            some = [
                b for b in blocks if b.strategy and (b.lasting, b.way.corrects) == (lasting, steps)
            ]
            for device in {b.active[0].device for b in some}:
                here = [b for b in some if b.strategy and b.active[0].device == device]
                own = [b.strategy for b in here if b.strategy is not None]
                # what crosses shares memory: one after the other
                merged = together(own) if device.type == "cuda" and lasting else own
                if lasting:
                    work.followed += merged
                else:
                    work.noted += [s for s in merged if steps or s.pull is not None]
                projects.setdefault(device, []).extend(merged)
                if steps:
                    corrects.setdefault(device, []).extend(merged)
    static = not any(is_sharded(p.data) for b in blocks for p in b.active)
    work.project = in_turn([recorded([s.project for s in p], d, static) for d, p in projects.items()])
    work.correct = in_turn([recorded([s.correct for s in c], d, static) for d, c in corrects.items()])
    return work
