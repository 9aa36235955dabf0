"""Keep an optimizer's steps in the free space, through its step hooks.

Before a step, the optimizer receives projected gradients. After it, the step is projected, and the
user's gradients are restored. See `free_space` for the mathematics, and `choose` for the projection
of each block. An optimizer's momentum and second moments are unchanged when a task ends, because
steps are projected anyway. Only the history of LBFGS is cleared, because it belongs to another free
space.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from conceptors._internal.precision import exactly
from conceptors.shield.distributed import local
from conceptors.shield.step.context import Context
from conceptors.shield.step.plan import StepPlan, make_plan
from conceptors.shield.step.trained import Trained

Hook = Callable[[], None]


class Guard:
    """The hooks of one optimizer.

    Attributes:
        between: called when `.grad` contains the projected gradients, before the step.
        stepped: names of the blocks that were stepped since the last `remember`.
        trained: parameters that had gradients since then.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        context: Callable[[], Context],
        between: Hook | None = None,
        gone: Callable[[Guard], None] = lambda guard: None,
    ) -> None:
        """`gone` is called when the optimizer is deleted."""
        this = weakref.ref(self)
        self._optimizer = weakref.ref(optimizer, lambda _: _call(gone, this()))
        self._context = context
        self.between = between
        self.plan = StepPlan()
        self.stepped: set[str] = set()
        self.trained = Trained()
        self._handles = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Remove the hooks from the optimizer."""
        for handle in self._handles:
            handle.remove()
        self.plan.close()

    def guards(self, optimizer: Optimizer) -> bool:
        return self._optimizer() is optimizer

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the optimizer."""
        optimizer = self._optimizer()
        return [] if optimizer is None else [p for g in optimizer.param_groups for p in g["params"]]

    def prepare(self) -> StepPlan:
        """Rebuild the plan if it is outdated, before the first forward pass of a task."""
        optimizer, context = self._optimizer(), self._context()
        if optimizer is None:
            self.plan.close()
            self.plan = StepPlan()
            return self.plan
        key = self._key(optimizer)
        if self.plan.key != key or self.plan.is_outrun(optimizer):
            before, self.plan = self.plan, self._make(optimizer)
            before.close()
            if before.is_of(context.version):  # weights have moved in memory
                self.plan.adopt(before)
            if isinstance(optimizer, torch.optim.LBFGS) and not context.protected.resumed:
                optimizer.state.clear()
        return self.plan

    def _key(self, optimizer: Optimizer) -> object:
        return (self._context().version, self.between is not None, _key(optimizer))

    def _make(self, optimizer: Optimizer) -> StepPlan:
        looked_at = self.between is not None
        with exactly():
            return make_plan(optimizer, self._context(), self._key(optimizer), looked_at)

    @torch.no_grad()
    def settle(self) -> None:
        """Project a step that was interrupted before its projection."""
        self.plan.gradients.give_back(late=True)
        optimizer = self._optimizer()
        if optimizer is not None and self.plan.in_step:
            self._finish(optimizer)

    # --- around a step --------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self.settle()
        callbacks = self._context().callbacks
        callbacks.check_thread()
        if self.plan.passing.is_next_due() or self.plan.key != self._key(optimizer):
            callbacks.look_again(optimizer)  # layers may have been added, removed, or frozen
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        plan = self.prepare()
        if closure is None:  # else gradients are those of the previous step
            self._record_trained()
        if not plan and self.between is None:
            plan.passing.is_due()  # counts the step: not every step scans the model
            return None
        if plan.work.versions is None or not plan.is_known():
            callbacks.look_before_step()  # other code may have changed weights
        decay = plan.extras.decay
        decays = bool(decay) and not _skips(optimizer)
        plan.extras.frozen.measure()
        if decays:
            decay.apply(decay.whole, optimizer)
        plan.note()
        if decays:
            decay.apply(decay.apart, optimizer)
        plan.extras.frozen.save()
        if closure is None:
            self._project(optimizer)
            return None

        def shielded() -> Any:
            """Call the user's closure, and project its gradients."""
            plan.gradients.give_back()
            loss = closure()
            self._record_trained()
            self._project(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], shielded, *args[2:]), kwargs
        return args, {**kwargs, "closure": shielded}

    def _record_trained(self) -> None:
        """Record the parameters that have gradients."""
        if self.trained.is_due():
            self.trained.add(self.parameters())

    @torch.no_grad()
    def _project(self, optimizer: Optimizer) -> None:
        self.plan.project(getattr(optimizer, "grad_scale", None))
        if self.plan.passing.steps == 1:
            self.stepped |= {block.name for block in self.plan.blocks}
        if self.plan.passing.is_reliable_now():
            self._context().callbacks.report_passing(self.plan.passing.shares())
        if self.between is not None:
            try:
                self.between()
            finally:
                self.plan.gradients.settle()

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.plan.gradients.give_back()
        if not self.plan or _skips(optimizer):
            self.plan.extras.frozen.saved = None
        else:
            self._finish(optimizer)

    def _finish(self, optimizer: Optimizer) -> None:
        """Project a step of the optimizer."""
        if self.plan.key != self._key(optimizer):  # SAM replaces weights by copies
            before, self.plan = self.plan, self._make(optimizer)
            before.close()
            self.plan.adopt(before)
        self.plan.correct()


def _call(what: Callable[[Any], None], guard: Any) -> None:
    if guard is not None:
        what(guard)


def _key(optimizer: Optimizer) -> object:
    """Return what a plan depends on besides the shield: parameters' memory, and their groups."""
    return [
        (
            bool(group.get("weight_decay", 0)),
            bool(group.get("momentum", 0)),
            [local(p).data_ptr() for p in group["params"]],
            [p.requires_grad for p in group["params"]],
        )
        for group in optimizer.param_groups
    ]


def _skips(optimizer: Optimizer) -> bool:
    """Whether a gradient scaler makes a fused optimizer skip this step."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)
