"""The guards of all optimizers of one model, and what they are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from torch.optim import Optimizer

from conceptors.shield.step.context import Context
from conceptors.shield.step.guard import Guard


class Guards(list[Guard]):
    """Guards that share one context, which is made anew when anything of it changes."""

    def __init__(self, make: Callable[[int], Context]) -> None:
        """`make` gives the context of now, with a version number."""
        super().__init__()
        self._make = make
        self.context = Context()

    def add(self, optimizer: Optimizer, between: Callable[[], None] | None) -> None:
        """Guard an optimizer; one that is guarded already may get another `between`."""
        known = next((guard for guard in self if guard.holds(optimizer)), None)
        if known is not None:
            known.between = between or known.between
            known.prepare()
            return
        self[:] = [guard for guard in self if guard.parameters()]
        self.append(Guard(optimizer, lambda: self.context, between))
        self.renew()  # what is held together may be more now
        self[-1].calm()

    def renew(self) -> None:
        """Tell all guards, and have them ready before the next forward pass."""
        self.context = self._make(self.context.version + 1)
        for guard in self:
            guard.prepare()

    def calm(self) -> None:
        """A task has ended; see `Guard.calm`."""
        for guard in self:
            guard.calm()

    def held(self) -> Counter[int]:
        """Ids of parameters, and by how many optimizers they are stepped."""
        return Counter(id(p) for guard in self for p in guard.parameters())

    def detach(self) -> None:
        """Take all hooks off."""
        for guard in self:
            guard.remove()
        self.clear()
