"""The guards of all optimizers of one model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torch.optim import Optimizer

from conceptors.shield.step.context import Context
from conceptors.shield.step.guard import Guard
from conceptors.shield.step.trained import Trained


class Guards(list[Guard]):
    """Guards that share one context, which is rebuilt when anything in it changes."""

    def __init__(self, make: Callable[[int], Context]) -> None:
        """`make` creates the current context, with a version number."""
        super().__init__()
        self._make = make
        self.context = Context()
        self._past_stepped: set[str] = set()  # blocks that removed guards have stepped
        self._past_trained: set[int] = set()  # parameters that they have trained

    def add(self, optimizer: Optimizer, between: Callable[[], None] | None) -> None:
        """Guard an optimizer, or replace `between` of an optimizer that is guarded already."""
        existing = next((guard for guard in self if guard.guards(optimizer)), None)
        if existing is not None:
            existing.between = between or existing.between
            existing.prepare()
            return
        self.append(Guard(optimizer, lambda: self.context, between, self._drop))
        self.renew()  # parameters of one block may have one more optimizer now

    def renew(self) -> None:
        """Rebuild the context, and prepare all guards before the next forward pass."""
        self.settle()
        self.context = self._make(self.context.version + 1)
        for guard in list(self):
            guard.prepare()

    def optimizer_counts(self) -> Counter[int]:
        """Count the guarded optimizers of each parameter, by id."""
        return Counter(id(p) for guard in self for p in guard.parameters())

    def ways(self) -> dict[str, list[str]]:
        """Return how steps of each block are treated, in words."""
        ways: dict[str, list[str]] = {}
        for block in (block for guard in self for block in guard.prepare().blocks):
            words = ways.setdefault(block.name, [])
            words += [block.way.about] if block.way.about not in words else []
        return ways

    def passing(self) -> dict[str, float]:
        """Return the share of recent gradients that was applied, by block."""
        return {n: share for g in self for n, share in g.prepare().passing.shares().items()}

    def ranks(self) -> dict[str, int]:
        """Return the number of protected directions of each block."""
        protected = self.context.protected
        active = {name: site.active() for name, site in protected.sites.items()}
        free = {n: protected.free(n, parameters) for n, parameters in active.items() if parameters}
        return {name: 0 if space is None else space.rank for name, space in free.items()}

    def settle(self) -> None:
        """Finish interrupted steps; see `Guard.settle`."""
        for guard in list(self):
            guard.settle()

    def abandon(self) -> None:
        """Abandon interrupted steps, and leave the weights as they are."""
        for guard in list(self):
            guard.plan.extras.frozen.saved = None

    def project(self, optimizer: Optimizer) -> None:
        """Project the gradients of an optimizer now, in place."""
        raise NotImplementedError  # until the merge

    def moved(self) -> dict[str, float]:
        """Compute how far other code has moved blocks since their last step."""
        drifts: dict[str, float] = {}
        for guard in list(self):
            drifts |= guard.plan.moved()
        return drifts

    def stepped(self) -> set[str]:
        """Return the names of blocks that were stepped since the weights were trusted."""
        return self._past_stepped | {name for guard in self for name in guard.stepped}

    def trained(self) -> set[int]:
        """Return the ids of parameters that had gradients since the weights were trusted."""
        return self._past_trained.union(*(guard.trained.ids for guard in self))

    def trust(self) -> None:
        """Restart the records of stepped blocks and trained parameters."""
        self._past_stepped, self._past_trained = set(), set()
        for guard in list(self):
            guard.stepped, guard.trained = set(), Trained()

    def is_guarded(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer is guarded."""
        return any(guard.guards(optimizer) for guard in self)

    def in_step(self) -> set[int]:
        """Return the ids of parameters that a guarded optimizer is stepping now."""
        return {id(p) for guard in self if guard.plan.in_step for p in guard.parameters()}

    def _drop(self, guard: Guard) -> None:
        """Remove a guard whose optimizer was deleted."""
        self._past_stepped |= guard.stepped
        self._past_trained |= guard.trained.ids
        guard.plan.close()
        self[:] = [other for other in self if other is not guard]

    def detach(self) -> None:
        """Remove all hooks."""
        self.settle()
        for guard in list(self):
            guard.remove()
        self.clear()
