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
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer

from conceptors._internal.precision import exactly, full
from conceptors.layers.magnitude import Magnitude
from conceptors.shield.block import GuardedBlock
from conceptors.shield.blocks import WeightBlock, whole
from conceptors.shield.gpu import Recorded, units_of
from conceptors.shield.projection import Claim, FreeSpace, count_protected, free_space

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

    sites: Mapping[str, WeightBlock] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    frozen: Mapping[str, nn.Parameter] = field(default_factory=dict)
    magnitudes: Mapping[str, Magnitude] = field(default_factory=dict)
    anchors: Mapping[int, Tensor] = field(default_factory=dict)  # W_previous, by a parameter's id
    sizes: list[float] = field(default_factory=list)  # of gradients, see `Guard._strength`
    increment_decay: float = 0.0

    def free(self, name: str, parameters: list[nn.Parameter]) -> FreeSpace | None:
        """Return the free space of some parameters of a block, or None if it is everything."""
        if name not in self.claims:
            return None
        columns = self.sites[name].columns(parameters)
        space = free_space(self.claims[name], columns, parameters[0])
        return space if space.rank else None


@exactly()
def project_weights(sites: Mapping[str, WeightBlock], protected: Protected) -> None:
    """Project the weights of blocks onto their free space, in place: W ← W F^½."""
    for name, site in sites.items():
        free = protected.free(name, site.active())
        if free is not None:
            block = GuardedBlock(site, site.active(), free, torch.ones(()))
            block.projection.apply_(block.weights())
            block.write_weights()


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

    def __bool__(self) -> bool:
        return any(map(bool, (self.blocks, self.still, self.magnitudes, self.decaying)))

    @exactly()
    def moved(self, later: set[int]) -> dict[str, float]:
        """Compute how far blocks have moved since the last step, relative to their claimed part.

        `later` are ids of parameters that other guards have stepped since.
        """
        blocks = [b for b in self.blocks if later.isdisjoint(map(id, b.parameters))]
        sizes = {block.name: block.moved() for block in blocks}
        numbers = {name: size.tolist() for name, size in sizes.items() if size is not None}
        return {n: math.sqrt(max(0.0, d) / max(w, 1e-30)) for n, (d, w) in numbers.items()}


def make_plan(
    optimizer: Optimizer, protected: Protected, key: object, copies: Sequence[GuardedBlock] = ()
) -> Plan:
    """Create the plan of an optimizer; keep the copies of weights of these blocks."""
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    scales: dict[torch.device, Tensor] = {}
    plan = Plan(key)
    for site in protected.sites.values():
        stepped = [p for p in site.active() if id(p) in groups]
        crossed = any(site.crosses(other) for other in protected.sites.values())
        for p in stepped if protected.increment_decay else ():
            if id(p) in protected.anchors and all(p is not other for other, *_ in plan.decaying):
                plan.decaying.append((p, protected.anchors[id(p)], groups[id(stepped[0])]))
        # only projections of single parameters commute with those of the other block
        for parameters in [[p] for p in stepped] if crossed else [stepped] if stepped else []:
            free = protected.free(site.name, parameters)
            if free is not None:
                device = parameters[0].device
                scale = scales.setdefault(device, torch.ones((), device=device))
                used = [groups[id(p)] for p in parameters]
                block = _guarded(optimizer, used, site, parameters, free, scale, crossed, protected)
                plan.blocks.append(block)
    previous = {(b.name, *map(id, b.parameters)): b.previous for b in copies}
    for block in plan.blocks:
        block.previous = previous.get((block.name, *map(id, block.parameters)))
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
    site: WeightBlock,
    parameters: list[nn.Parameter],
    free: FreeSpace,
    scale: Tensor,
    crossed: bool,
    protected: Protected,
) -> GuardedBlock:
    """Choose how the steps of a block are projected; see the table above."""
    if isinstance(optimizer, SGD) and free.stiffness is not None:
        stiffest = _STEADY / max(1e-12, *map(_rate, groups))
        free = free._replace(stiffness=free.stiffness.clamp(max=stiffest))
    # G F of parameters with separate rates is no step in the free space
    whole = all(group is groups[0] for group in groups)
    if protected.increment_decay:  # nor is the decay of some of its parameters
        whole &= len(parameters) == sum(id(p) not in site.passive for p in site.parameters)
    plain = type(optimizer) is SGD and not groups[0]["weight_decay"] and not groups[0]["momentum"]
    exact = all(p.dtype in (torch.float32, torch.float64) for p in parameters)
    searches = type(optimizer) is LBFGS
    once = searches or (plain and whole and exact)
    anchors: list[Tensor] = []
    if free.stiffness is not None and all(id(p) in protected.anchors for p in parameters):
        anchors = [protected.anchors[id(p)].to(p.device, p.dtype) for p in parameters]
    return GuardedBlock(
        site,
        parameters,
        free,
        scale,
        once=once,
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
        in_step: whether a step has begun and is not projected yet, also after Ctrl-C.
        steps: the number of steps since the claims changed.
        passing: running means of <G, G F> and <G, G> `[2]` by layer, from steps 1, 2, 4, 8, …
        stepped: names of the blocks that were stepped since the last `remember`.
        trained: ids of parameters that had gradients since then.
        versions: of the weights after the last step, by version counters; empty if unknown.
        turn: the order of the last steps of all guards.
    """

    def __init__(self, optimizer: Optimizer, guards: Guards) -> None:
        this = weakref.ref(self)
        self._optimizer = weakref.ref(optimizer, lambda _: guards.drop(this()))
        self._guards = guards
        self.plan = Plan()
        self.in_step = False
        self.steps = 0
        self.passing: dict[str, Tensor] = {}
        self.stepped: set[str] = set()
        self.trained: set[int] = set()
        self._still: list[tuple[nn.Parameter, Tensor]] = []
        self._ratios: dict[str, Tensor] = {}
        self._late: list[float] = []  # sizes of gradients, see `_strength`
        self._projected: list[Tensor | None] | None = None  # gradients that `project` projected
        self._counts: list[int] = []  # their version counters
        self.versions: list[int] = []
        self.turn = 0
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in self._handles:
            handle.remove()

    def guards(self, optimizer: Optimizer) -> bool:
        return self._optimizer() is optimizer

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the optimizer."""
        optimizer = self._optimizer()
        return [] if optimizer is None else [p for g in optimizer.param_groups for p in g["params"]]

    def prepare(self) -> Plan:
        """Rebuild the plan if the claims or the parameters have changed."""
        optimizer = self._optimizer()
        if optimizer is None:
            return Plan()
        key = (self._guards.version, _key(optimizer))
        if self.plan.key != key:
            self.versions = []
            is_same = isinstance(self.plan.key, tuple) and self.plan.key[0] == key[0]
            copies = self.plan.blocks if is_same else ()  # weights have moved in memory
            with exactly():
                self.plan = make_plan(optimizer, self._guards.protected, key, copies)
            if not is_same:
                if isinstance(optimizer, LBFGS) and self.steps:  # else loaded with the claims
                    optimizer.state.clear()
                self.steps, self.passing, self._late = 0, {}, []
        return self.plan

    def settle(self) -> None:
        """Project a step that was interrupted before its projection."""
        if self.in_step:
            self.prepare()
            self._finish()
            self.versions = []  # look, because a part of a plain step may have been taken

    # --- around a step --------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self.settle()
        self._guards.check_thread()
        self.steps += 1
        due, plan = _is_due(self.steps), self.plan
        if due or plan.key != (self._guards.version, _key(optimizer)):
            self._guards.look_again()  # layers may have been added, removed, or frozen
            plan = self.prepare()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if plan:
            self._look(plan)
            self._begin(optimizer, plan)
        if closure is None:  # else gradients are those of the previous step
            self._project(optimizer, due)
            return None

        def shielded() -> Any:
            """Call the user's closure, and project its gradients."""
            loss = closure()
            self._project(optimizer, due)
            return loss

        if len(args) > 1:
            return (args[0], shielded, *args[2:]), kwargs
        return args, {**kwargs, "closure": shielded}

    @exactly()
    def _look(self, plan: Plan) -> None:
        """Look at weights that other code may have changed, and measure their drifts."""
        if self.versions != _versions(plan):
            self._guards.look_before_step()
            for unit in plan.units:
                unit.measure_drift()
            self.versions = _versions(plan)
        if self.steps == 1:
            self.stepped |= {block.name for block in plan.blocks}

    @exactly()
    def _begin(self, optimizer: Optimizer, plan: Plan) -> None:
        """Copy what `_finish` needs to know about the weights before the step."""
        self._ratios = {name: m.ratio() for name, m in plan.magnitudes.items()}
        is_hard = all(block.hard for block in plan.blocks)
        for unit in plan.units if is_hard else ():  # whose decay is projected
            unit.copy_weights()
        if plan.decaying and not _skips(optimizer):
            for parameter, anchor, group in plan.decaying:  # W ← W - η 2 λ (W - W_previous)
                share = 2 * self._guards.protected.increment_decay * group.get("lr", 1.0)
                share = share.to(anchor) if isinstance(share, Tensor) else share
                parameter.data.lerp_(anchor, share)
            for unit in plan.units:
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

    def project(self, optimizer: Optimizer) -> None:
        """Project the gradients now; the next step does not project soft ones again."""
        present = [p.grad for p in self.parameters()]
        if self._projected is not None and self._counts != _counts(present):
            self._projected = None  # gradients of another pass, in the same memory
        self._look(self.prepare())
        self._project(optimizer, _is_due(self.steps + 1))
        self._projected = [p.grad for p in self.parameters()]
        self._counts = _counts(self._projected)

    @exactly()
    def _project(self, optimizer: Optimizer, due: bool) -> None:
        if due:
            self.trained |= _with_gradients(self.parameters(), self.trained)
        early, self._projected = self._projected, None
        is_early = early is not None and _same(early, [p.grad for p in self.parameters()])
        plan = self.plan
        # other code may have changed them since, and hard ones may be projected any number of times
        if not plan or (is_early and not all(block.hard for block in plan.blocks)):
            return
        strength = self._strength(plan, getattr(optimizer, "grad_scale", None))
        for factor in plan.scales:
            factor.copy_(strength) if isinstance(strength, Tensor) else factor.fill_(strength)
        if due and not is_early:
            self._measure(plan)
        for unit in plan.units:
            unit.project_gradient()

    def _strength(self, plan: Plan, scale: Tensor | None) -> float | Tensor:
        """Return the factor of the pull, which belongs to gradients of the current scale.

        It is 1, or less for a task with a small loss, such as the squared error of pixels. The loss
        is unknown here, but |G| |W| of a layer is proportional to it. The mean over the first steps
        of a task counts; of each step, the largest of all layers.
        """
        sizes = self._guards.protected.sizes
        is_late = 0 <= _RELIABLE - self.steps < _LATE
        if (len(sizes) < _BEGINNING or is_late) and not _is_capturing():
            dense = [p for p in plan.weights if p.grad is not None and not p.grad.is_sparse]
            products = [_norm(p.grad) * _norm(p.data) for p in dense]
            size = max(torch.stack(products).tolist()) if products else 0.0
            size /= 1.0 if scale is None else float(scale)
            if 0 < size < math.inf:
                (self._late if is_late else sizes).append(size)
        strength = min(1.0, fmean(sizes) / _USUAL) if sizes else 1.0
        return strength if scale is None else strength * scale

    def _measure(self, plan: Plan) -> None:
        """Measure the share of the gradients that is applied."""
        for block in plan.blocks:
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

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self.in_step:
            return
        if _skips(optimizer):
            self.in_step = False
            return
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
        self.versions, self.in_step = _versions(self.plan), False
        self.turn = 1 + max(guard.turn for guard in [self, *self._guards])


class Guards(list[Guard]):
    """The guards of all optimizers of one model.

    Attributes:
        protected: what they protect. `make` recomputes it when anything in it changes.
        version: the number of these changes.
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
        self.protected, self.version = Protected(), 0
        self._past_stepped: set[str] = set()  # blocks that removed guards have stepped
        self._past_trained: set[int] = set()  # parameters that they have trained

    def add(self, optimizer: Optimizer) -> None:
        """Guard an optimizer."""
        guard = self._of(optimizer)
        if guard is None:
            guard = Guard(optimizer, self)
            self.append(guard)
        guard.prepare()

    def project(self, optimizer: Optimizer) -> None:
        """Project the gradients of a guarded optimizer now."""
        guard = self._of(optimizer)
        if guard is None:
            raise ValueError(
                f"this {type(optimizer).__name__} is not guarded; call shield.guard(optimizer) "
                f"before its first step"
            )
        guard.project(optimizer)

    def renew(self) -> None:
        """Recompute what is protected, and prepare all guards before the next step."""
        self.settle()
        self.protected, self.version = self._make(), self.version + 1
        for guard in list(self):
            guard.prepare()

    def settle(self) -> None:
        """Finish interrupted steps; see `Guard.settle`."""
        for guard in list(self):
            guard.settle()

    def doubt(self) -> None:
        """Measure drifts again at the next step, and round weights, as a resumed run does."""
        for guard in list(self):
            guard.versions = []
            for block in guard.plan.blocks:
                block.round()

    def abandon(self) -> None:
        """Abandon interrupted steps, and leave the weights as they are."""
        for guard in list(self):
            guard.in_step = False

    def detach(self) -> None:
        """Remove all hooks."""
        self.settle()
        for guard in list(self):
            guard.remove()
        self.clear()

    def ways(self) -> dict[str, list[str]]:
        """Return how the steps of each block are treated, in words."""
        ways: dict[str, list[str]] = {}
        for block in (block for guard in list(self) for block in guard.prepare().blocks):
            words = ways.setdefault(block.name, [])
            words += [block.about] if block.about not in words else []
        return ways

    def passing(self) -> dict[str, float]:
        """Return the share of recent gradients that was applied, by block."""
        return {name: share for guard in list(self) for name, share in guard.shares().items()}

    def ranks(self) -> dict[str, int]:
        """Return the number of protected directions of each block."""
        sites, claims = self.protected.sites, self.protected.claims
        active = {name: site.active() for name, site in sites.items() if name in claims}
        return {
            name: count_protected(claims[name], sites[name].columns(parameters), parameters[0])
            for name, parameters in active.items()
            if parameters
        }

    def is_guarded(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer is guarded."""
        return self._of(optimizer) is not None

    def in_step(self) -> set[int]:
        """Return the ids of parameters that a guarded optimizer is stepping now."""
        return {id(p) for guard in list(self) if guard.in_step for p in guard.parameters()}

    def moved(self) -> dict[str, float]:
        """Compute how far other code has moved blocks since their last step."""
        drifts: dict[str, float] = {}
        later: set[int] = set()
        for guard in sorted(self, key=lambda guard: -guard.turn):
            for name, drift in guard.plan.moved(later).items():
                drifts[name] = max(drift, drifts.get(name, 0.0))
            later |= {id(p) for p in guard.parameters()} if guard.turn else set()
        return drifts

    def stepped(self) -> set[str]:
        """Return the names of blocks that were stepped since the weights were trusted."""
        return self._past_stepped | {name for guard in list(self) for name in guard.stepped}

    def trained(self) -> set[int]:
        """Return the ids of parameters that had gradients since the weights were trusted."""
        return self._past_trained.union(*(guard.trained for guard in list(self)))

    def trust(self) -> None:
        """Restart the records of stepped blocks and trained parameters."""
        self._past_stepped, self._past_trained = set(), set()
        for guard in list(self):
            guard.stepped, guard.trained = set(), set()

    def drop(self, guard: Guard | None) -> None:
        """Remove a guard whose optimizer was deleted."""
        if guard is not None:
            self._past_stepped |= guard.stepped
            self._past_trained |= guard.trained
            self[:] = [other for other in self if other is not guard]

    def _of(self, optimizer: Optimizer) -> Guard | None:
        return next((guard for guard in list(self) if guard.guards(optimizer)), None)


def _same(some: list[Tensor | None], others: list[Tensor | None]) -> bool:
    """Whether two lists contain the same objects."""
    return len(some) == len(others) and all(map(is_, some, others))


def _counts(gradients: list[Tensor | None]) -> list[int]:
    """Return the version counters of gradients."""
    return [-1 if gradient is None else _local(gradient)._version for gradient in gradients]


def _key(optimizer: Optimizer) -> object:
    """Return what a plan depends on besides the claims: parameters' memory, and their groups.

    Loading the state of an optimizer replaces its groups.
    """
    is_sgd = isinstance(optimizer, SGD)
    return [
        (
            id(group),
            bool(group.get("weight_decay", 0)),
            bool(group.get("momentum", 0)),
            _rate(group) if is_sgd and not getattr(group["lr"], "is_cuda", False) else 0,
            [_local(p).data_ptr() for p in group["params"]],
            [p.requires_grad for p in group["params"]],
        )
        for group in optimizer.param_groups
    ]


def _local(tensor: Tensor) -> Tensor:
    """Return the local part of a sharded tensor."""
    part: Tensor = getattr(tensor, "_local_tensor", tensor)  # to_local() is slow and makes views
    return part


def _versions(plan: Plan) -> list[int]:
    """Return the version counters of all weights, a hint that other code has changed them."""
    return [_local(p)._version for block in plan.blocks for p in block.parameters]


def _with_gradients(parameters: list[nn.Parameter], known: set[int]) -> set[int]:
    """Return the ids of parameters with nonzero gradients, beyond those that are known."""
    by_device: dict[torch.device, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None and id(parameter) not in known:
            by_device.setdefault(parameter.device, []).append(parameter)
    trained: set[int] = set()
    for unknown in by_device.values():  # wait once per device
        learns = torch.stack([_is_nonzero(p.grad) for p in unknown]).tolist()
        trained |= {id(p) for p, is_trained in zip(unknown, learns) if is_trained}
    return trained


def _norm(tensor: Tensor | None) -> Tensor:
    """Compute the norm of a whole tensor."""
    assert tensor is not None
    return whole(torch.linalg.vector_norm(full(tensor))).cpu().double()


def _is_nonzero(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    part = _local(gradient)
    return (part._values() if part.is_sparse else part).any()


def _is_due(step: int) -> bool:
    """Whether to measure this step: 1, 2, 4, 8, …, but not while a CUDA graph is captured."""
    return (step & (step - 1) == 0 or step % _INTERVAL == 0) and not _is_capturing()


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _skips(optimizer: Optimizer) -> bool:
    """Whether a gradient scaler makes a fused optimizer skip this step."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)
