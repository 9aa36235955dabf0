"""Keeping an optimizer's steps in the free space, through its own step hooks.

Before a step the optimizer is given projected gradients, after it the step is projected, and the
user's gradients are put back. See `free_space` for the mathematics, `choose` for what is done
where. Nothing is done to an optimizer's momentum and second moments when a task ends: steps are
projected whatever they hold. Only LBFGS starts anew, as its history is of another free space.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from conceptors._internal.precision import exactly
from conceptors.shield.shards import local
from conceptors.shield.step.context import Context
from conceptors.shield.step.plan import StepPlan, make_plan
from conceptors.shield.step.trained import Trained

Hook = Callable[[], None]


class Guard:
    """The hooks of one optimizer.

    Attributes:
        between: called when the optimizer is about to see projected gradients, as `.grad`.
        stepped: names of the blocks that were stepped since a task was remembered.
        trained: parameters that had gradients since then.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        context: Callable[[], Context],
        between: Hook | None = None,
        gone: Callable[[Guard], None] = lambda guard: None,
    ) -> None:
        """`gone` is called when the optimizer is no more."""
        ours = weakref.ref(self)
        self._optimizer = weakref.ref(optimizer, lambda _: _call(gone, ours()))
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
        """Take the hooks off the optimizer."""
        for handle in self._handles:
            handle.remove()
        self.plan.close()

    def holds(self, optimizer: Optimizer) -> bool:
        return self._optimizer() is optimizer

    def parameters(self) -> list[nn.Parameter]:
        """All that the optimizer changes."""
        optimizer = self._optimizer()
        return [] if optimizer is None else [p for g in optimizer.param_groups for p in g["params"]]

    def prepare(self) -> StepPlan:
        """Be ready before the first forward pass of a task, not at its first step."""
        optimizer, context = self._optimizer(), self._context()
        if optimizer is None:
            self.plan.close()
            self.plan = StepPlan()
            return self.plan
        key = self._key(optimizer)
        if self.plan.key != key or self.plan.is_outrun(optimizer):
            before, self.plan = self.plan, self._make(optimizer)
            before.close()
            if before.is_of(context.version):  # weights are elsewhere in memory
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
        """Project a step that was interrupted before that."""
        self.plan.gradients.give_back(late=True)
        optimizer = self._optimizer()
        if optimizer is not None and self.plan.in_step:
            self._finish(optimizer)

    # --- around a step --------------------------------------------------------------------

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        self.settle()
        keeper = self._context().keeper
        keeper.check_thread()
        if self.plan.passing.is_next_due() or self.plan.key != self._key(optimizer):
            keeper.look_again(optimizer)  # layers may have come, gone, or been frozen
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        plan = self.prepare()
        if closure is None:  # else gradients are of a step before
            self._see()
        if not plan and self.between is None:
            plan.passing.is_due()  # counted, so that not every step looks at the whole model
            return None
        if plan.work.versions is None or not plan.is_known():
            keeper.look_before_step()  # others may have changed weights since the last step or task
        decay = plan.rest.decay
        decays = bool(decay) and not _skips(optimizer)
        plan.rest.frozen.measure()
        if decays:
            decay.apply(decay.whole, optimizer)
        plan.note()
        if decays:
            decay.apply(decay.apart, optimizer)
        plan.rest.frozen.keep()
        if closure is None:
            self._project(optimizer)
            return None

        def shielded() -> Any:
            """The user's closure, then its gradients projected."""
            plan.gradients.give_back()
            loss = closure()
            self._see()
            self._project(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], shielded, *args[2:]), kwargs
        return args, {**kwargs, "closure": shielded}

    def _see(self) -> None:
        """What has gradients is learning."""
        if self.trained.is_due():
            self.trained.see(self.parameters())

    @torch.no_grad()
    def _project(self, optimizer: Optimizer) -> None:
        self.plan.project(getattr(optimizer, "grad_scale", None))
        if self.plan.passing.steps == 1:
            self.stepped |= {block.name for block in self.plan.blocks}
        if self.plan.passing.is_sure():
            self._context().keeper.warn(self.plan.passing.shares())
        if self.between is not None:
            try:
                self.between()
            finally:
                self.plan.gradients.settle()

    @torch.no_grad()
    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.plan.gradients.give_back()
        if not self.plan or _skips(optimizer):
            self.plan.rest.frozen.kept = None
        else:
            self._finish(optimizer)

    def _finish(self, optimizer: Optimizer) -> None:
        """Project the step that was made."""
        if self.plan.key != self._key(optimizer):  # SAM puts copies in place of the weights
            before, self.plan = self.plan, self._make(optimizer)
            before.close()
            self.plan.adopt(before)
        self.plan.correct()


def _call(what: Callable[[Any], None], guard: Any) -> None:
    if guard is not None:
        what(guard)


def _key(optimizer: Optimizer) -> object:
    """What a plan depends on, beside the shield: where parameters are, and how they are stepped."""
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
    """Whether a gradient scaler has told a fused optimizer to do nothing in this step."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)
