"""Keeping an optimizer's steps in the free space, through its own step hooks.

Three ways, chosen for every site by optimizer, shape and machine:

- **Updates.** The change that a step made is projected after it. Right for every optimizer: even
  with projected gradients, Adam, weight decay and their like leave the free space.
- **Inputs.** Where a step is a combination of gradients with scalar factors (SGD without weight
  decay) and a batch has fewer rows than a layer outputs, backward passes project the rows, which
  is Algorithm 2 of the report in fewer operations (see `inputs`).
- **Gradients.** LBFGS looks for its steps with the gradients, so they are projected before it
  sees them. The user's gradients are put back after the step.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors import inputs
from conceptors.gradients import project_gradient, projected
from conceptors.precision import exactly
from conceptors.projection import Projector
from conceptors.replay import Replayed
from conceptors.sites import Site, is_sharded
from conceptors.stacks import stacked
from conceptors.updates import Factored, Tied, Update, make_update, tie
from conceptors.world import World


@dataclass
class Guarded:
    """A site as one optimizer sees it: what it may change, and how that is kept in bounds."""

    name: str
    site: Site
    active: list[nn.Parameter]
    projector: Projector
    update: Update | None = None  # None: by gradient alone
    by_gradient: bool = False
    inlet: inputs.Inlet | None = None
    lasting: bool = True  # whether a mark outlives a step
    places: list[int] = field(default_factory=list)  # in memory, of the parameters
    in_plan: bool = False  # marked with others before every step
    seen: list[int] | None = None  # versions of the parameters at the last mark
    clean: bool = False  # momentum is known to lie in the free space

    def is_marked(self) -> bool:
        """Whether the mark shows the weights as they are."""
        return self.lasting and self.seen == [p._version for p in self.active]

    def carry_over(self, old: Guarded) -> None:
        """Go on where a former plan for the same claims was."""
        if [id(p) for p in self.active] != [id(p) for p in old.active]:
            return
        self.clean = old.clean
        moved = self.places != old.places  # `p.data = ...` may be anything
        if old.factored is not None and old.is_marked() and not moved:
            self.take_mark(old.factored.kept)

    def take_mark(self, mark: Tensor) -> None:
        """Use an earlier mark, which knows of earlier rounding, if it fits the weights."""
        if self.factored is not None and self.update is not None:
            self.update.mark()
            if self.factored.take_mark(mark):
                self.seen = [p._version for p in self.active]

    @property
    def factored(self) -> Factored | None:
        """The part of the update whose mark cannot be read off the weights bit by bit."""
        update = self.update.factored if isinstance(self.update, Tied) else self.update
        return update if isinstance(update, Factored) else None


@dataclass
class Plan:
    """All that has to be done around the steps of one optimizer, until something changes."""

    version: int = -1  # of the shield
    claims: int = -1
    key: object = None  # of the optimizer
    guarded: list[Guarded] = field(default_factory=list)
    frozen: list[nn.Parameter] = field(default_factory=list)
    decayed: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)
    marks: list[Replayed] = field(default_factory=list)  # of many sites, on a GPU
    corrections: list[Replayed] = field(default_factory=list)  # the same
    loose: list[Guarded] = field(default_factory=list)  # corrected one by one
    watched: list[nn.Parameter] = field(default_factory=list)  # of all sites
    versions: list[int] | None = None  # of these, after a step that was only replayed

    def is_recorded(self) -> bool:
        """Whether a step needs nothing but the replay of recorded corrections."""
        return bool(self.corrections) and not (
            self.loose
            or self.marks
            or self.frozen
            or self.decayed
            or any(g.update is None or g.by_gradient for g in self.guarded)
            or not all(correct.recorded for correct in self.corrections)
        )

    def settle(self) -> None:
        """Tell the sites what the last replay has marked."""
        versions, self.versions = iter(self.versions or ()), None
        for guarded in self.guarded:
            seen = list(islice(versions, len(guarded.active)))
            guarded.seen = seen or guarded.seen


class Guard:
    """The hooks of one optimizer."""

    def __init__(self, optimizer: Optimizer, world: Callable[[], World]) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._world = world
        self._plan = Plan()
        self._raw: list[tuple[nn.Parameter, Tensor | None, Tensor | None]] = []  # and ours
        self._kept: list[tuple[nn.Parameter, Tensor]] = []
        self._stepped = -1  # the claims of the last step
        self._trusted: set[int] = set()  # sites whose gradients are projected already
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    def remove(self) -> None:
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()

    def holds(self, optimizer: Optimizer) -> bool:
        return self._optimizer() is optimizer

    def parameters(self) -> list[nn.Parameter]:
        """All that the optimizer changes."""
        optimizer = self._optimizer()
        return [] if optimizer is None else [p for g in optimizer.param_groups for p in g["params"]]

    def is_current(self) -> bool:
        """Whether a step was made since the last change of what is claimed."""
        return self._stepped == self._world().claims

    def inlets(self) -> list[inputs.Inlet]:
        """The hooks on layers that this optimizer makes use of."""
        some = self._plan.guarded if self._optimizer() is not None else ()
        return [guarded.inlet for guarded in some if guarded.inlet is not None]

    def prepare(self) -> None:
        """Be ready before the first forward pass of a task, not at its first step."""
        optimizer = self._optimizer()
        if optimizer is not None:
            self._current(optimizer)

    def progress(self) -> dict[str, tuple[bool, Tensor | None]]:
        """What a run in the middle of a task needs to go on bit by bit, site by site.

        Whether momentum lies in the free space, and the mark, which holds earlier rounding.
        """
        found: dict[str, tuple[bool, Tensor | None]] = {}
        self._plan.settle()
        for guarded in self._plan.guarded if self.is_current() else ():
            kept = None
            if guarded.factored is not None and guarded.is_marked():
                kept = guarded.factored.kept.clone()
            if kept is not None or guarded.name not in found:  # a tied weight, its bias apart
                found[guarded.name] = (guarded.clean, kept)
        return found

    # --- around a step --------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._restore_gradients()  # in case the last step failed half-way
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        plan = self._current(optimizer)
        if plan.versions is not None:
            if plan.versions == [p._version for p in plan.watched]:
                return None  # all is marked, and the gradients do not matter
            plan.settle()
        with exactly():
            if plan.decayed and not _skips(optimizer):
                self._decay_increments(optimizer, plan)
            self._kept = [(p, p.data.clone()) for p in plan.frozen]
            self._trusted = set()
            if closure is None:
                self._look_at_gradients(optimizer, plan)
            for guarded in plan.guarded:
                if guarded.update is None or guarded.in_plan or id(guarded) in self._trusted:
                    continue
                if not guarded.is_marked():
                    guarded.update.mark()
            for mark in plan.marks:
                mark()
        if closure is None:
            return None

        def shielded() -> Any:
            """The user's closure, then its gradients looked at."""
            self._restore_gradients()
            loss = closure()
            with exactly():
                self._look_at_gradients(optimizer, plan)
            return loss

        if len(args) > 1:
            return (args[0], shielded, *args[2:]), kwargs
        return args, {**kwargs, "closure": shielded}

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        plan = self._plan
        self._stepped = plan.claims
        if plan.is_recorded():
            if not _skips(optimizer):
                for correct in plan.corrections:
                    correct()
            plan.versions = [p._version for p in plan.watched]
            return
        with exactly():
            self._restore_gradients()
            if not _skips(optimizer):
                for guarded in plan.loose:
                    if guarded.update is not None and id(guarded) not in self._trusted:
                        guarded.update.correct()
                for correct in plan.corrections:
                    correct()
            for guarded in plan.guarded:
                if guarded.update is not None and id(guarded) not in self._trusted:
                    guarded.seen = [p._version for p in guarded.active]
                    guarded.clean = False
            for parameter, value in self._kept:
                parameter.data.copy_(value)
            self._kept = []

    def _decay_increments(self, optimizer: Optimizer, plan: Plan) -> None:
        """W ← W - η 2 λ (W - W_previous), decoupled from the projection (Algorithm 2)."""
        rate = 2 * self._world().increment_decay
        rates = {id(p): g.get("lr", 1.0) for g in optimizer.param_groups for p in g["params"]}
        for parameter, anchor in plan.decayed:
            step = rate * rates[id(parameter)]
            parameter.data.sub_((parameter.data - anchor) * step)

    def _loaded(self, optimizer: Optimizer) -> None:
        """Momentum that was put in during a task can be of any origin."""
        for guarded in self._plan.guarded if self.is_current() else ():
            guarded.clean = False

    def _look_at_gradients(self, optimizer: Optimizer, plan: Plan) -> None:
        """Find which gradients are projected already; project them now for LBFGS, and where soft
        conceptors would else be applied twice to momentum.
        """
        for guarded in plan.guarded:
            if guarded.inlet is not None:
                if guarded.inlet.confirms():
                    guarded.clean = guarded.clean or _clean_momentum(optimizer, guarded)
                    if guarded.clean:
                        self._trusted.add(id(guarded))
                elif all(p.grad is None for p in guarded.active):
                    self._trusted.add(id(guarded))  # not a part of this step
                elif guarded.clean and not guarded.projector.hard and _moves(optimizer, guarded):
                    self._project_gradient(guarded)
                    self._trusted.add(id(guarded))
            if guarded.by_gradient and any(p.grad is not None for p in guarded.active):
                self._project_gradient(guarded)

    def _project_gradient(self, guarded: Guarded) -> None:
        raw = [p.grad for p in guarded.active]
        project_gradient(guarded.site, guarded.active, guarded.projector)
        self._raw += [(p, gradient, p.grad) for p, gradient in zip(guarded.active, raw)]

    def _restore_gradients(self) -> None:
        for parameter, gradient, ours in self._raw:
            if parameter.grad is ours:
                parameter.grad = gradient
        self._raw = []

    # --- the plan -------------------------------------------------------------------------

    def _current(self, optimizer: Optimizer) -> Plan:
        """The plan, made anew when the shield, the optimizer or a parameter has changed."""
        world = self._world()
        key = [
            (
                bool(group.get("weight_decay", 0)),
                [p.data_ptr() for p in group["params"]],  # where its numbers are
                [p.requires_grad for p in group["params"]],
            )
            for group in optimizer.param_groups
        ]
        if self._plan.version == world.version and self._plan.key == key:
            return self._plan
        former = self._plan
        former.settle()
        new_claims = former.claims != world.claims != world.clean
        with exactly():
            self._plan = self._make(optimizer, world, key)
            for guarded in self._plan.guarded:
                for old in former.guarded if former.claims == world.claims else ():
                    if old.name == guarded.name:
                        guarded.carry_over(old)
                if guarded.name in world.resumed:
                    guarded.clean, mark = world.resumed.pop(guarded.name)
                    if mark is not None:
                        guarded.take_mark(mark)
        if new_claims and isinstance(optimizer, torch.optim.LBFGS) and self._plan.guarded:
            optimizer.state.clear()  # its history was made in another free space
        return self._plan

    def _make(self, optimizer: Optimizer, world: World, key: object) -> Plan:
        plan = Plan(world.version, world.claims, key)
        group_of = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        uses = Counter(id(p) for site in world.sites.values() for p in site.parameters)
        held = world.held()
        for name, site in world.sites.items():
            active = [p for p in site.active() if id(p) in held]
            touched = [p for p in active if id(p) in group_of]
            if not touched:
                continue
            if world.increment_decay:
                done = {id(p) for p, _ in plan.decayed}
                plan.decayed += [
                    (p, world.anchors[id(p)])
                    for p in touched
                    if id(p) in world.anchors and id(p) not in done
                ]
            if any(site.crosses(other) for other in world.sites.values()):
                # only projections of single parameters commute with those of the other site
                for parameter in active:
                    self._add(plan, name, site, [parameter], world, False)
                continue
            lasting = not world.increment_decay and not any(is_sharded(p.data) for p in active)
            guarded = self._add(plan, name, site, active, world, lasting)
            if guarded is None:
                continue
            alone = len({id(group_of.get(id(p))) for p in active}) == 1 and not any(
                uses[id(p)] > 1 for p in active
            )
            if type(optimizer) is torch.optim.LBFGS and alone:
                guarded.by_gradient = True
                if not guarded.projector.hard:  # LBFGS multiplies rounding errors of hard ones
                    guarded.update = None
            elif (
                type(optimizer) is torch.optim.SGD
                and alone
                and all(held[id(p)] == 1 for p in active)  # others want their gradients raw
                and not group_of[id(touched[0])].get("weight_decay", 0)
                and inputs.fits(site, active)
            ):
                guarded.inlet = world.inlet(name, guarded.projector)
        if not world.increment_decay:
            _tie(plan)
        if world.claimed:
            plan.frozen = [p for p in world.frozen.values() if id(p) in group_of]
        _arrange(plan)
        return plan

    def _add(
        self,
        plan: Plan,
        name: str,
        site: Site,
        active: list[nn.Parameter],
        world: World,
        lasting: bool,
    ) -> Guarded | None:
        projector = world.projector(name, active)
        if projector is None or projector.rank == 0:
            return None
        update = make_update(site, active, projector)
        places = [p.data_ptr() for p in active]
        guarded = Guarded(name, site, active, projector, update, lasting=lasting, places=places)
        plan.guarded.append(guarded)
        return guarded


def _arrange(plan: Plan) -> None:
    """What is on a GPU is done together, recorded and replayed; the rest goes one by one."""
    plan.watched = [p for guarded in plan.guarded for p in guarded.active]
    on_gpu: dict[torch.device, list[tuple[Guarded, Update]]] = {}
    for guarded in plan.guarded:
        update, first = guarded.update, guarded.active[0]
        if update is None:
            continue
        if first.device.type == "cuda" and update.static and not is_sharded(first.data):
            on_gpu.setdefault(first.device, []).append((guarded, update))
        else:
            plan.loose.append(guarded)
    for device, some in on_gpu.items():
        pieces = stacked([update for guarded, update in some if guarded.lasting])
        others = [update for guarded, update in some if not guarded.lasting]
        if others:  # they may share memory: one after the other
            plan.marks.append(Replayed(_in_turn([u.mark for u in others]), device=device))
            pieces.append(_in_turn([u.correct for u in others]))
        for guarded, _ in some:
            guarded.in_plan = not guarded.lasting
        plan.corrections.append(Replayed(*pieces, device=device))


def _tie(plan: Plan) -> None:
    """Weights that are an embedding and a matrix at once get one update for both."""
    by_weight: dict[int, list[Guarded]] = {}
    for guarded in plan.guarded:
        if not guarded.lasting:
            by_weight.setdefault(id(guarded.active[0]), []).append(guarded)
    for some in by_weight.values():
        tied = tie([guarded.update for guarded in some if guarded.update is not None])
        if tied is not None and not is_sharded(some[0].active[0].data):
            some[0].update, some[0].lasting = tied, True
            plan.guarded = [g for g in plan.guarded if g is not some[1]]


def _in_turn(pieces: list[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for piece in pieces:
            piece()

    return run


def _clean_momentum(optimizer: Optimizer, guarded: Guarded) -> bool:
    """Old momentum must not push into claimed space where steps are not projected any more.

    Returns whether it lies in the free space now; not where only some parameters have any yet.
    """
    buffers = _momentum(optimizer, guarded)
    if len(buffers) == len(guarded.active):
        parts = projected(guarded.site, guarded.active, guarded.projector, buffers)
        for buffer, part in zip(buffers, parts):
            buffer.copy_(part)
    return len(buffers) in (0, len(guarded.active))


def _momentum(optimizer: Optimizer, guarded: Guarded) -> list[Tensor]:
    buffers = [optimizer.state.get(p, {}).get("momentum_buffer") for p in guarded.active]
    return [buffer for buffer in buffers if buffer is not None]


def _moves(optimizer: Optimizer, guarded: Guarded) -> bool:
    """Whether momentum, and all gradients, will be a part of the step."""
    whole = all(p.grad is not None for p in guarded.active)
    return whole and len(_momentum(optimizer, guarded)) == len(guarded.active)


def _skips(optimizer: Optimizer) -> bool:
    """Whether a gradient scaler has told a fused optimizer to do nothing in this step."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
