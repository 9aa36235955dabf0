"""Keeping an optimizer's steps in the free space, through its own step hooks.

Two ways, chosen for every site:

- **Gradients.** Where a step is a combination of gradients with scalar factors (plain and
  momentum SGD without weight decay, LBFGS), the gradients are projected before the step, which
  is Algorithm 2 of the report. The user's gradients are put back after the step.
- **Updates.** Anything else (Adam, weight decay, ...) leaves the free space even with projected
  gradients, so the change that the step made is projected after it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors.conceptor import Conceptor
from conceptors.projection import Projector, exactly, restrict
from conceptors.sites import Site, is_sharded


@dataclass
class Guarded:
    """A site as one optimizer sees it: what it may change, and the projector for that."""

    site: Site
    active: list[nn.Parameter]
    projector: Projector
    by_gradient: bool
    mark: Tensor | None = None


@dataclass
class Plan:
    """All that has to be done around the steps of one optimizer, until something changes."""

    version: int = -1  # of the shield
    claims: int = -1
    key: object = None  # of the optimizer
    guarded: list[Guarded] = field(default_factory=list)
    frozen: list[nn.Parameter] = field(default_factory=list)
    decayed: list[tuple[nn.Parameter, Tensor, dict[str, Any]]] = field(default_factory=list)


@dataclass
class World:
    """What a guard asks the shield for: it may change between steps."""

    version: int  # counts all changes
    claims: int  # counts changes of what is claimed
    clean: int  # momentum is known to lie in the free space of these claims
    sites: Mapping[str, Site]
    claimed: Mapping[str, Conceptor]
    frozen: Mapping[str, nn.Parameter]
    anchors: Mapping[int, Tensor]
    increment_decay: float
    rank: Callable[[str, int], int | None]
    held: Callable[[], set[int]]  # ids of the parameters of all guarded optimizers
    projectors: dict[object, Projector] = field(default_factory=dict)  # made when first needed

    def projector(self, name: str, active: list[nn.Parameter]) -> Projector | None:
        """What keeps changes of a site's parameters in the free space; None if all is free."""
        claimed = self.claimed.get(name)
        if claimed is None:
            return None
        dtype, device = active[0].dtype, active[0].device
        key = (name, dtype, device, *(id(p) for p in active))
        if key not in self.projectors:
            columns = self.sites[name].columns(active)
            part = claimed if columns is None else restrict(claimed, columns)
            limit = self.rank(name, part.dim)
            self.projectors[key] = Projector(part.to(device), dtype, limit)
        return self.projectors[key]


class Guard:
    """The hooks of one optimizer."""

    def __init__(self, optimizer: Optimizer, world: Callable[[], World]) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._world = world
        self._plan = Plan()
        self._raw: list[tuple[nn.Parameter, Tensor | None]] = []
        self._kept: list[tuple[nn.Parameter, Tensor]] = []
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
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
        return self._plan.claims == self._world().claims

    # --- around a step --------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self._restore_gradients()  # in case the last step failed half-way
        with exactly():
            plan = self._current(optimizer)
            if not _skips(optimizer):
                self._decay_increments(plan)
            self._kept = [(p, p.data.clone()) for p in plan.frozen]
            for guarded in plan.guarded:
                # LBFGS multiplies the rounding errors of the gradients
                if not guarded.by_gradient or (
                    isinstance(optimizer, torch.optim.LBFGS) and guarded.projector.hard
                ):
                    weights = guarded.site.matrix(guarded.active)
                    guarded.mark = guarded.projector.mark(_full(weights))
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if closure is None:
                self._swap_gradients(plan)
                return None

        def shielded() -> Any:
            """The user's closure, then its gradients projected."""
            self._restore_gradients()
            loss = closure()
            with exactly():
                self._swap_gradients(plan)
            return loss

        if len(args) > 1:
            return (args[0], shielded, *args[2:]), kwargs
        return args, {**kwargs, "closure": shielded}

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        with exactly():
            self._restore_gradients()
            for guarded in self._plan.guarded:
                if guarded.mark is None:
                    continue
                weights = _full(guarded.site.matrix(guarded.active))
                leaked = guarded.projector.correction(weights, guarded.mark)
                guarded.site.subtract(leaked, guarded.active)
                guarded.mark = None
            for parameter, value in self._kept:
                parameter.data.copy_(value)
            self._kept = []

    def _decay_increments(self, plan: Plan) -> None:
        """W ← W - η 2 λ (W - W_previous), decoupled from the projection (Algorithm 2)."""
        rate = 2 * self._world().increment_decay
        for parameter, anchor, group in plan.decayed:
            step = rate * group.get("lr", 1.0)
            parameter.data.sub_((parameter.data - anchor) * step)

    def _swap_gradients(self, plan: Plan) -> None:
        """Put projected gradients in place of the raw ones, which are kept."""
        for guarded in plan.guarded:
            if guarded.by_gradient and any(p.grad is not None for p in guarded.active):
                self._raw += [(p, p.grad) for p in guarded.active]
                project_gradient(guarded.site, guarded.active, guarded.projector)

    def _restore_gradients(self) -> None:
        for parameter, gradient in self._raw:
            parameter.grad = gradient
        self._raw = []

    # --- the plan -------------------------------------------------------------------------

    def _current(self, optimizer: Optimizer) -> Plan:
        """The plan, made anew when the shield, the optimizer or a `requires_grad` has changed."""
        world = self._world()
        key = tuple(
            (
                len(group["params"]),
                bool(group.get("weight_decay", 0)),
                sum(p.requires_grad for p in group["params"]),
                any(_is_sparse(p) for p in group["params"]),
                {(p.dtype, p.device) for p in group["params"]},
            )
            for group in optimizer.param_groups
        )
        if self._plan.version == world.version and self._plan.key == key:
            return self._plan
        new_claims = self._plan.claims != world.claims != world.clean
        self._plan = self._make(optimizer, world, key)
        if new_claims:
            self._clean_momentum(optimizer)
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
                done = {id(p) for p, _, _ in plan.decayed}
                plan.decayed += [
                    (p, world.anchors[id(p)], group_of[id(p)])
                    for p in touched
                    if id(p) in world.anchors and id(p) not in done
                ]
            if any(site.crosses(other) for other in world.sites.values()):
                # only projections of single parameters commute with those of the other site
                for parameter in active:
                    alone = world.projector(name, [parameter])
                    if alone is not None:
                        plan.guarded.append(Guarded(site, [parameter], alone, False))
                continue
            projector = world.projector(name, active)
            if projector is None:
                continue
            groups = {id(group_of.get(id(p))) for p in active}
            linear = (
                len(groups) == 1  # one step size for weight and bias
                and _is_linear(optimizer, group_of[id(touched[0])])
                and not any(_is_sparse(p) or uses[id(p)] > 1 for p in active)
                and not any(getattr(s.layer, "sparse", False) for s in site.sources)
                and (site.block.rows_first or not is_sharded(active[0].data))
            )
            plan.guarded.append(Guarded(site, active, projector, linear))
        if world.claimed:
            plan.frozen = [p for p in world.frozen.values() if id(p) in group_of]
        return plan

    def _clean_momentum(self, optimizer: Optimizer) -> None:
        """After a new task was remembered, old momentum must not push into its space."""
        if isinstance(optimizer, torch.optim.LBFGS):
            if self._plan.guarded:
                optimizer.state.clear()
            return
        for guarded in self._plan.guarded:
            buffers = [optimizer.state.get(p, {}).get("momentum_buffer") for p in guarded.active]
            if not guarded.by_gradient or any(b is None for b in buffers):
                continue
            tensors = [_local(b) for b in buffers]
            parts = _projected(guarded.site, guarded.active, guarded.projector, tensors)
            for buffer, part in zip(tensors, parts):
                buffer.copy_(part)


def _is_linear(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether steps are combinations of gradients with scalar factors."""
    if type(optimizer) is torch.optim.LBFGS:
        return True
    return type(optimizer) is torch.optim.SGD and not group.get("weight_decay", 0)


def _skips(optimizer: Optimizer) -> bool:
    """Whether a gradient scaler has told a fused optimizer to do nothing in this step."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _is_sparse(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and parameter.grad.layout != torch.strided


def _full(matrix: Tensor) -> Tensor:
    """Half precision is projected in float32."""
    return matrix.float() if matrix.dtype in (torch.float16, torch.bfloat16) else matrix


def _local(tensor: Any) -> Tensor:
    found: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return found


def _local_gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    return _local(torch.zeros_like(parameter.data) if gradient is None else gradient)


def _like_gradient(parameter: nn.Parameter, local: Tensor) -> Tensor:
    """A local gradient in the form the parameter wants."""
    if not is_sharded(parameter.data):
        return local
    from torch.distributed.tensor import DTensor

    data: Any = parameter.data
    return DTensor.from_local(
        local, data.device_mesh, data.placements, shape=data.shape, stride=data.stride()
    )


def project_gradient(site: Site, active: list[nn.Parameter], projector: Projector) -> None:
    """Put the projected gradients of a site's parameters in place of the raw ones."""
    gradients = [_local_gradient(p) for p in active]
    for parameter, part in zip(active, _projected(site, active, projector, gradients)):
        parameter.grad = _like_gradient(parameter, part)


def _projected(
    site: Site, active: list[nn.Parameter], projector: Projector, tensors: list[Tensor]
) -> list[Tensor]:
    """Tensors of the shapes of the active parameters, seen as one matrix M, as M (I - A)."""
    matrix = site.matrix(active, {id(p): t for p, t in zip(active, tensors)})
    free = matrix - projector.claimed(_full(matrix)).to(matrix.dtype)
    found, taken = [], 0
    for parameter, tensor in zip(active, tensors):
        whole = torch.empty_like(tensor)
        (view,) = site.views({id(parameter): whole}, [parameter])
        size = view.shape[2:].numel()
        view.copy_(free[..., taken : taken + size].reshape(view.shape))
        taken += size
        found.append(whole)
    return found
