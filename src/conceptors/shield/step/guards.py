"""The guards of all optimizers of one model, and what they are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torch.optim import Optimizer

from conceptors.shield.step.context import Context
from conceptors.shield.step.guard import Guard
from conceptors.shield.step.trained import Trained


class Guards(list[Guard]):
    """Guards that share one context, which is made anew when anything of it changes."""

    def __init__(self, make: Callable[[int], Context]) -> None:
        """`make` gives the context of now, with a version number."""
        super().__init__()
        self._make = make
        self.context = Context()
        self._past: set[str] = set()  # what guards that are gone have stepped
        self._taught: set[int] = set()  # what they have trained

    def add(self, optimizer: Optimizer, between: Callable[[], None] | None) -> None:
        """Guard an optimizer; one that is guarded already may get another `between`."""
        known = next((guard for guard in self if guard.holds(optimizer)), None)
        if known is not None:
            known.between = between or known.between
            known.prepare()
            return
        self.append(Guard(optimizer, lambda: self.context, between, self._drop))
        self.renew()  # what is held together may be more now

    def renew(self) -> None:
        """Tell all guards, and have them ready before the next forward pass."""
        self.settle()
        self.context = self._make(self.context.version + 1)
        for guard in list(self):
            guard.prepare()

    def held(self) -> Counter[int]:
        """Ids of parameters, and by how many optimizers they are stepped."""
        return Counter(id(p) for guard in self for p in guard.parameters())

    def settle(self) -> None:
        """Have no step half made; see `Guard.settle`."""
        for guard in list(self):
            guard.settle()

    def abandon(self) -> None:
        """Leave weights as they are now, also where a step was interrupted."""
        for guard in list(self):
            guard.plan.rest.frozen.kept = None

    def moved(self) -> dict[str, float]:
        """How far something else has moved blocks since they were last stepped."""
        found: dict[str, float] = {}
        for guard in list(self):
            found |= guard.plan.moved()
        return found

    def stepped(self) -> set[str]:
        """Names of blocks that were stepped since weights were trusted."""
        return self._past | {name for guard in self for name in guard.stepped}

    def trained(self) -> set[int]:
        """Ids of parameters that had gradients since then."""
        return self._taught.union(*(guard.trained.ids for guard in self))

    def trust(self) -> None:
        """Count steps anew."""
        self._past, self._taught = set(), set()
        for guard in list(self):
            guard.stepped, guard.trained = set(), Trained()

    def holds(self, optimizer: Optimizer) -> bool:
        """Whether an optimizer is guarded."""
        return any(guard.holds(optimizer) for guard in self)

    def in_step(self) -> set[int]:
        """Ids of parameters that a guarded optimizer is stepping right now."""
        return {id(p) for guard in self if guard.plan.in_step for p in guard.parameters()}

    def _drop(self, guard: Guard) -> None:
        """Its optimizer is gone."""
        self._past |= guard.stepped
        self._taught |= guard.trained.ids
        guard.plan.close()
        self[:] = [other for other in self if other is not guard]

    def detach(self) -> None:
        """Take all hooks off."""
        self.settle()
        for guard in list(self):
            guard.remove()
        self.clear()
