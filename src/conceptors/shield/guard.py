"""Keep an optimizer's steps in the free space, through its step hooks.

Before a step, gradients are projected in place, G ← G F^½, as `clip_grad_norm_` clips them, and the
weights are copied. After it, the step is projected, W ← W_before + ΔW F^½. See `projection` for
the mathematics.

| optimizer                             | gradients | steps         |
|---------------------------------------|-----------|---------------|
| SGD without momentum and weight decay | times F   | unchanged     |
| LBFGS, which searches with gradients  | times F   | hard: times F |
| any other                             | times F^½ | times F^½     |

Where an optimizer steps only some parameters of a block, the free space is that of changes of these
alone. Momentum is unchanged when a task ends, because steps are projected anyway. Only the history
of LBFGS is cleared, because it belongs to another free space.

The projection shortens steps. Where a pull corrects the drift, steps of adaptive optimizers are
therefore doubled, their weight decay too. Longer steps of SGD can diverge, and norms and LoRA's
factors need none. Without task boundaries there is no beginning of a task to hasten.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import (
    LBFGS,
    SGD,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

from conceptors._internal.distributed import whole
from conceptors._internal.precision import exactly, full
from conceptors.layers.magnitude import Magnitude
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.gpu import Recorded, units_of
from conceptors.shield.guarded import GuardedBlock
from conceptors.shield.projection import Claim, FreeSpace, free_space

_STRETCH = 2.0  # the factor of projected steps of adaptive optimizers
_ADAPTIVE = (Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, RMSprop)
_STEADY = 0.5  # the share of the distance that a plain step may pull weights back
_INTERVAL = 1024  # the most steps between measurements, which double until then
_DECAY = 0.5  # weight of earlier measurements
_USUAL = 1.5  # |G| |W| where a cross-entropy begins; where a pixel-wise error does, it is about 0.5
_RELIABLE = 128  # steps after which a warning about `passing` may be issued
_LATE = 10  # the last steps before, in which the gradients of a task that is learned are small
_LEARNED = 0.65  # relative to the first ones
_BEGINNING = 20  # the first steps of a task, which show how large its loss is


@dataclass(frozen=True)
class Protected:
    """The protected parts of a model, and their state at the beginning of the task."""

    blocks: Mapping[str, WeightBlock] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    frozen: Mapping[str, nn.Parameter] = field(default_factory=dict)
    magnitudes: Mapping[str, Magnitude] = field(default_factory=dict)
    anchors: Mapping[int, Tensor] = field(default_factory=dict)  # W_previous, by a parameter's id
    sizes: list[float] = field(default_factory=list)  # of gradients, see `Guard._scale_pull`
    increment_decay: float = 0.0
    stretched: Collection[str] = ()  # blocks in which steps of adaptive optimizers are doubled

    def free(self, name: str, parameters: list[nn.Parameter]) -> FreeSpace | None:
        """Return the free space of some parameters of a block, or None if it is everything."""
        if name not in self.claims:
            return None
        columns = self.blocks[name].columns(parameters)
        space = free_space(self.claims[name], columns, parameters[0])
        return space if space.rank else None


@exactly()
def project_weights(blocks: Mapping[str, WeightBlock], protected: Protected) -> None:
    """Project the weights of blocks onto their free space, in place: W ← W F^½."""
    for name, block in blocks.items():
        free = protected.free(name, block.active())
        if free is not None:
            guarded = GuardedBlock(block, block.active(), free, torch.ones(()))
            guarded.projection.apply_(guarded.weights)
            guarded.write_weights()


@dataclass
class Plan:
    """What is done around the steps of one optimizer.

    Attributes:
        key: what the plan depends on.
        blocks: the blocks with protected directions that the optimizer steps.
        units: the same, with the blocks of a GPU together.
        scales: the factor of the pull, on each device.
        weights: the matrices of the blocks.
        still: parameters that a step must not move.
        magnitudes: parameters that follow their directions, by name.
        decaying: parameters, W_previous and a group of the optimizer, for the decay of Algorithm 2;
            one group for a whole block, because parts at separate rates leave the free space.
    """

    key: object = None
    blocks: list[GuardedBlock] = field(default_factory=list)
    units: list[GuardedBlock | Recorded] = field(default_factory=list)
    scales: list[Tensor] = field(default_factory=list)
    weights: list[nn.Parameter] = field(default_factory=list)
    still: list[nn.Parameter] = field(default_factory=list)
    magnitudes: Mapping[str, Magnitude] = field(default_factory=dict)
    decaying: list[tuple[nn.Parameter, Tensor, dict[str, Any]]] = field(default_factory=list)

    def versions(self) -> list[int]:
        """Return the version counters of all weights, a hint that other code has changed them."""
        parameters = [p for block in self.blocks for p in block.parameters]
        return [getattr(p, "_local_tensor", p)._version for p in parameters]


def make_plan(
    optimizer: Optimizer, protected: Protected, key: object, copies: Sequence[GuardedBlock] = ()
) -> Plan:
    """Create the plan of an optimizer; keep the copies of weights of these blocks."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    scales: dict[torch.device, Tensor] = {}
    plan = Plan(key)
    for block in protected.blocks.values():
        stepped = [p for p in block.active() if id(p) in groups]
        crossed = any(block.crosses(other) for other in protected.blocks.values())
        for p in stepped if protected.increment_decay else ():
            if id(p) in protected.anchors and all(p is not other for other, *_ in plan.decaying):
                plan.decaying.append((p, protected.anchors[id(p)], groups[id(stepped[0])]))
        # only projections of single parameters commute with those of the other block
        for parameters in [[p] for p in stepped] if crossed else [stepped] if stepped else []:
            free = protected.free(block.name, parameters)
            if free is not None:
                device = parameters[0].device
                scale = scales.setdefault(device, torch.ones((), device=device))
                used = [groups[id(p)] for p in parameters]
                plan.blocks.append(
                    _guarded(optimizer, used, block, parameters, free, scale, crossed, protected)
                )
    previous = {(b.name, *map(id, b.parameters)): b.previous for b in copies}
    for guarded in plan.blocks:
        weights = previous.get((guarded.name, *map(id, guarded.parameters)))
        if weights and weights[0].device == guarded.device and weights[0].dtype == guarded.dtype:
            guarded.previous = weights
    plan.units, plan.scales = units_of(plan.blocks), list(scales.values())
    plan.weights = [b.parameters[0] for b in plan.blocks if b.parameters[0].ndim > 1]
    if protected.claims:
        plan.magnitudes = protected.magnitudes
        fixed = {id(p) for p in protected.frozen.values()}
        # momentum and weight decay also move parameters that do not require gradients
        everything = (p for group in optimizer.param_groups for p in group["params"])
        plan.still = [p for p in everything if id(p) in fixed or not p.requires_grad]
    return plan


def _guarded(
    optimizer: Optimizer,
    groups: list[dict[str, Any]],
    block: WeightBlock,
    parameters: list[nn.Parameter],
    free: FreeSpace,
    scale: Tensor,
    crossed: bool,
    protected: Protected,
) -> GuardedBlock:
    """Choose how the steps of a block are projected; see the table above."""
    is_sgd, searches = isinstance(optimizer, SGD), type(optimizer) is LBFGS
    if is_sgd and free.stiffness is not None:
        stiffest = _STEADY / max(1e-12, *map(_rate, groups))
        free = free._replace(stiffness=free.stiffness.clamp(max=stiffest))
    # G F of parameters with separate rates is no step in the free space
    whole = all(group is groups[0] for group in groups)
    if protected.increment_decay:  # nor is the decay of some of its parameters
        whole &= len(parameters) == sum(id(p) not in block.passive for p in block.parameters)
    plain = type(optimizer) is SGD and not groups[0]["weight_decay"] and not groups[0]["momentum"]
    exact = all(p.dtype in (torch.float32, torch.float64) for p in parameters)
    once = searches or (plain and whole and exact)
    is_stretched = block.name in protected.stretched and not crossed  # both blocks would stretch
    anchors: list[Tensor] = []
    if free.stiffness is not None and all(id(p) in protected.anchors for p in parameters):
        anchors = [protected.anchors[id(p)].to(p.device, p.dtype) for p in parameters]
    return GuardedBlock(
        block,
        parameters,
        free,
        scale,
        once=once,
        stretch=_STRETCH if is_stretched and isinstance(optimizer, _ADAPTIVE) else 1.0,
        corrects=free.hard or not whole if searches else not once,
        crossed=crossed,
        anchors=anchors,
    )


def _rate(group: dict[str, Any]) -> float:
    """Return the largest learning rate of a schedule, roughly: three quarters of a power of two.

    A schedule may start with a small rate. A plan must be the same where a run is resumed from a
    checkpoint, so it does not depend on the exact rate.
    """
    largest = max(float(group.get(name) or 0.0) for name in ("lr", "initial_lr", "max_lr"))
    return math.ldexp(0.75, math.frexp(largest)[1])


class Guard:
    """The hooks of one optimizer.

    Attributes:
        optimizer: a weak reference.
        plan: what is done around its steps.
        in_step: whether a step has begun and is not projected yet, also after Ctrl-C.
        steps: the number of steps since the claims changed.
        passing: running means of <G, G F> and <G, G> `[2]` by layer, from steps 1, 2, 4, 8, …
        versions: of the weights after the last step, by version counters; empty if unknown.
        turn: the order of the last steps of all guards.
    """

    def __init__(self, optimizer: Optimizer, guards: Guards) -> None:
        this = weakref.ref(self)
        self.optimizer = weakref.ref(optimizer, lambda _: guards.drop(this()))
        self._guards = guards
        self.plan = Plan()
        self.in_step = False
        self.steps = 0
        self.passing: dict[str, Tensor] = {}
        self.versions: list[int] = []
        self.turn = 0
        self._still: list[tuple[nn.Parameter, Tensor]] = []
        self._ratios: dict[str, Tensor] = {}
        self._late: list[float] = []  # sizes of gradients, see `_scale_pull`
        self._early: list[tuple[Tensor | None, int]] = []  # gradients that `project` projected
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in self._handles:
            handle.remove()

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the optimizer."""
        optimizer = self.optimizer()
        return [] if optimizer is None else [p for g in optimizer.param_groups for p in g["params"]]

    def prepare(self) -> None:
        """Rebuild the plan if the claims or the parameters have changed."""
        optimizer = self.optimizer()
        if optimizer is None:
            return
        key = (self._guards.version, _key(optimizer))
        if self.plan.key == key:
            return
        is_same = isinstance(self.plan.key, tuple) and self.plan.key[0] == key[0]
        copies = self.plan.blocks if is_same else ()  # weights have moved in memory
        with exactly():
            self.plan = make_plan(optimizer, self._guards.protected, key, copies)
        self.versions = []
        if not is_same:
            if isinstance(optimizer, LBFGS) and self.steps:  # else loaded with the claims
                optimizer.state.clear()
            self.steps, self.passing, self._late = 0, {}, []

    def settle(self) -> None:
        """Project a step that was interrupted before its projection."""
        self.prepare()
        self._finish()
        self.versions = []  # look, because a part of a plain step may have been taken

    # --- around a step --------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self.in_step:
            self.settle()
        self._guards.check_thread()
        self.steps += 1
        is_due = _is_due(self.steps)
        if is_due or self.plan.key != (self._guards.version, _key(optimizer)):
            self._guards.look_again()  # layers may have been added, removed, or frozen
            self.prepare()
        self._begin(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:  # else gradients are those of the previous step
            self._project(optimizer, is_due)
            return None

        def shielded() -> Any:
            """Call the user's closure, and project its gradients."""
            loss = closure()
            self._project(optimizer, is_due)
            return loss

        if len(args) > 1:
            return (args[0], shielded, *args[2:]), kwargs
        return args, {**kwargs, "closure": shielded}

    def project(self, optimizer: Optimizer) -> None:
        """Project the gradients now; the next step does not project soft ones again."""
        now = self._gradients()
        if [version for _, version in now] != [version for _, version in self._early]:
            self._early = []  # gradients of another pass, in the same memory
        self.prepare()
        self._look()
        self._project(optimizer, _is_due(self.steps + 1))
        self._early = self._gradients()

    @exactly()
    def _look(self) -> None:
        """Look at weights that other code may have changed, and measure their drifts."""
        if self.versions != self.plan.versions():
            self._guards.look_before_step()
            for unit in self.plan.units:
                unit.measure_drift()
            self.versions = self.plan.versions()

    @exactly()
    def _begin(self, optimizer: Optimizer) -> None:
        """Copy what `_finish` needs to know about the weights before the step."""
        plan = self.plan
        self._look()
        if self.steps == 1:
            self._guards.stepped.update(block.name for block in plan.blocks)
        self._ratios = {name: m.ratio() for name, m in plan.magnitudes.items()}
        is_hard = all(block.hard for block in plan.blocks)
        for unit in plan.units if is_hard else ():  # whose decay is projected
            unit.copy_weights()
        skips = plan.decaying and getattr(optimizer, "found_inf", None)  # a gradient scaler's wish
        for parameter, anchor, group in (
            () if skips else plan.decaying
        ):  # W ← W - η 2 λ (W - W_previous)
            share = 2 * self._guards.protected.increment_decay * group.get("lr", 1.0)
            share = share.to(anchor) if isinstance(share, Tensor) else share
            parameter.data.lerp_(anchor, share)
        for unit in plan.units if plan.decaying else ():
            unit.measure_drift()
        for unit in plan.units if not is_hard else ():
            unit.copy_weights()
        moves_all = isinstance(optimizer, LBFGS)  # along its history
        self._still = [
            (p, p.data.clone())
            for p in plan.still
            if p.requires_grad or p.grad is not None or moves_all
        ]
        self.in_step = True

    @exactly()
    def _project(self, optimizer: Optimizer, is_due: bool) -> None:
        early, self._early, plan = self._early, [], self.plan
        if is_due:
            self._guards.note_trained(self.parameters())
        now = [gradient for gradient, _ in self._gradients()] if early else []
        is_early = len(now) == len(early) > 0 and all(a is b for (a, _), b in zip(early, now))
        # other code may have changed them since, and hard ones may be projected any number of times
        if is_early and not all(block.hard for block in plan.blocks):
            return
        if plan.scales:
            self._scale_pull(getattr(optimizer, "grad_scale", None))
        if is_due and not is_early:
            self._measure()
        for unit in plan.units:
            unit.project_gradient()

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.in_step:
            self.prepare()  # SAM replaces weights by copies
            self._finish()

    @exactly()
    def _finish(self) -> None:
        """Project a step of the optimizer."""
        for unit in self.plan.units:
            unit.project_step()
        for parameter, value in self._still:
            parameter.data.copy_(value)
        for name, magnitude in self.plan.magnitudes.items():
            if name in self._ratios:
                magnitude.follow(self._ratios[name])
        self.versions, self.in_step = self.plan.versions(), False
        self._guards.turn = self.turn = self._guards.turn + 1

    # --- measurements ---------------------------------------------------------------------

    def _gradients(self) -> list[tuple[Tensor | None, int]]:
        """Return the gradients with their version counters."""
        gradients = [p.grad for p in self.parameters()]
        return [(g, getattr(getattr(g, "_local_tensor", g), "_version", -1)) for g in gradients]

    def _scale_pull(self, scale: Tensor | None) -> None:
        """Set the factor of the pull, which belongs to gradients of the current scale.

        It is 1, or less for a task with a small loss, such as the squared error of pixels. The loss
        is unknown here, but |G| |W| of a layer is proportional to it. The mean over the first steps
        of a task counts; of each step, the largest of all layers.
        """
        sizes = self._guards.protected.sizes
        is_late = 0 <= _RELIABLE - self.steps < _LATE
        if (len(sizes) < _BEGINNING or is_late) and not _is_capturing():
            dense = [p for p in self.plan.weights if p.grad is not None and not p.grad.is_sparse]
            products = [_norm(p.grad) * _norm(p.data) for p in dense]
            size = max(torch.stack(products).tolist()) if products else 0.0
            size /= 1.0 if scale is None else float(scale)
            if 0 < size < math.inf:
                (self._late if is_late else sizes).append(size)
        strength = min(1.0, fmean(sizes) / _USUAL) if sizes else 1.0
        for factor in self.plan.scales:
            factor.fill_(strength) if scale is None else factor.copy_(strength * scale)

    def _measure(self) -> None:
        """Measure the share of the gradients that is applied."""
        for block in self.plan.blocks:
            now, mean = block.passing(), self.passing.get(block.name)
            if now is not None:
                self.passing[block.name] = now if mean is None else now.lerp(mean, _DECAY)
        sizes = self._guards.protected.sizes
        is_reliable = self.steps in (_RELIABLE - 1, _RELIABLE)  # early projections come before
        is_measured = is_reliable and sizes and self._late
        if is_measured and fmean(self._late) > _LEARNED * fmean(sizes):
            self._guards.report_passing(self.shares())

    def shares(self) -> dict[str, float]:
        """Return the applied share of each layer's gradients; none where gradients were NaN."""
        means = {name: mean.tolist() for name, mean in self.passing.items()}
        return {
            name: min(1.0, max(0.0, free / total))
            for name, (free, total) in means.items()
            if total > 0 and math.isfinite(free / total)
        }


class Guards(list[Guard]):
    """The guards of all optimizers of one model.

    Attributes:
        protected: what they protect. `make` recomputes it when anything in it changes.
        version: the number of these changes.
        stepped: names of the blocks that were stepped since the weights were accepted.
        trained: ids of parameters that had gradients since then.
        turn: the number of steps of all guards.
        check_thread: raises RuntimeError if another thread is using the shield.
        look_again: checks whether layers were added or replaced.
        look_before_step: checks the weights, which other code than a guarded step has changed.
        report_passing: receives the share of the gradients that is applied, by layer.
    """

    def __init__(
        self,
        make: Callable[[], Protected],
        *,
        check_thread: Callable[[], None],
        look_again: Callable[[], None],
        look_before_step: Callable[[], None],
        report_passing: Callable[[Mapping[str, float]], None],
    ) -> None:
        super().__init__()
        self._make, self.check_thread, self.look_again = make, check_thread, look_again
        self.look_before_step, self.report_passing = look_before_step, report_passing
        self.protected, self.version, self.turn = Protected(), 0, 0
        self.stepped, self.trained = set[str](), set[int]()

    def of(self, optimizer: Optimizer) -> Guard | None:
        """Return the guard of an optimizer; None without one."""
        return next((guard for guard in list(self) if guard.optimizer() is optimizer), None)

    def add(self, optimizer: Optimizer) -> None:
        """Guard an optimizer."""
        guard = self.of(optimizer)
        if guard is None:
            guard = Guard(optimizer, self)
            self.append(guard)
        guard.prepare()

    def drop(self, guard: Guard | None) -> None:
        """Remove a guard whose optimizer was deleted."""
        self[:] = [other for other in self if other is not guard]

    def renew(self) -> None:
        """Recompute what is protected, and prepare all guards before the next step."""
        self.settle()
        self.protected, self.version = self._make(), self.version + 1
        for guard in list(self):
            guard.prepare()

    def settle(self) -> None:
        """Finish interrupted steps; see `Guard.settle`."""
        for guard in [guard for guard in self if guard.in_step]:
            guard.settle()

    def abandon(self) -> None:
        """Abandon interrupted steps, and leave the weights as they are."""
        for guard in list(self):
            guard.in_step = False

    def doubt(self) -> None:
        """Measure drifts again at the next step, and round weights, as a resumed run does."""
        for guard in list(self):
            guard.versions = []
            for block in guard.plan.blocks:
                block.round()

    def ways(self) -> dict[str, dict[str, None]]:
        """Return how the steps of each block are treated, in words."""
        ways: dict[str, dict[str, None]] = {}
        for guard in list(self):
            guard.prepare()
            for block in guard.plan.blocks:
                ways.setdefault(block.name, {})[block.about] = None
        return ways

    def passing(self) -> dict[str, float]:
        """Return the share of recent gradients that was applied, by block."""
        return {name: share for guard in list(self) for name, share in guard.shares().items()}

    def note_trained(self, parameters: list[nn.Parameter]) -> None:
        """Note which parameters have gradients that are not zero."""
        for p in parameters:
            if p.grad is not None and id(p) not in self.trained:
                part = getattr(p.grad, "_local_tensor", p.grad)
                if bool((part._values() if part.is_sparse else part).any()):
                    self.trained.add(id(p))

    def detach(self) -> None:
        """Remove all hooks."""
        self.settle()
        for guard in list(self):
            guard.remove()
        self.clear()

    @exactly()
    def moved(self) -> dict[str, float]:
        """Compute how far other code has moved blocks since their last step.

        The distance is relative to the protected part of the weights.
        """
        drifts, later = dict[str, float](), set[int]()  # parameters that were stepped later
        for guard in sorted(self, key=lambda guard: -guard.turn):
            for block in guard.plan.blocks:
                sizes = block.moved() if later.isdisjoint(map(id, block.parameters)) else None
                if sizes is not None:
                    moved, whole = sizes.tolist()
                    drift = math.sqrt(max(0.0, moved) / max(whole, 1e-30))
                    drifts[block.name] = max(drift, drifts.get(block.name, 0.0))
            later |= {id(p) for p in guard.parameters()} if guard.turn else set()
        return drifts


def _key(optimizer: Optimizer) -> object:
    """Return what a plan depends on besides the claims: parameters' memory, and their groups.

    Loading the state of an optimizer replaces its groups. The memory of a sharded parameter is that
    of its local part, and `to_local()` is slow.
    """
    is_sgd = isinstance(optimizer, SGD)
    return [
        (
            id(group),
            bool(group.get("weight_decay", 0)),
            bool(group.get("momentum", 0)),
            _rate(group) if is_sgd and not getattr(group["lr"], "is_cuda", False) else 0,
            [(getattr(p, "_local_tensor", p).data_ptr(), p.stride()) for p in group["params"]],
            [p.requires_grad for p in group["params"]],
        )
        for group in optimizer.param_groups
    ]


def _norm(tensor: Tensor | None) -> Tensor:
    """Compute the norm of a whole tensor."""
    assert tensor is not None
    return whole(torch.linalg.vector_norm(full(tensor))).cpu().double()


def _is_due(step: int) -> bool:
    """Whether to measure this step: 1, 2, 4, 8, …, but not while a CUDA graph is captured."""
    return (step & (step - 1) == 0 or step % _INTERVAL == 0) and not _is_capturing()


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
