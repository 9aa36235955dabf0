"""Remember training data without task boundaries, from the passes that training makes anyway."""

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.optim import Optimizer

from conceptors.shield.collect import NotFiniteError, Pass


class Stream:
    """Observe training passes, and consolidate what they used every few steps of an optimizer.

    Args:
        every: the number of steps.
        begin: returns a pass that observes the next `every` batches.
        consolidate: remembers what a pass has observed.
        skip: warns that a pass is not remembered, because this layer's inputs were not finite.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        every: int,
        *,
        begin: Callable[[int], Pass],
        consolidate: Callable[[Pass], None],
        skip: Callable[[str], None],
    ) -> None:
        self._every, self._begin = every, begin
        self._consolidate, self._skip = consolidate, skip
        self._hooks = ExitStack()  # of the model
        self._handle = optimizer.register_step_post_hook(self._after_step)
        weakref.finalize(optimizer, self._hooks.close)
        self.restart()

    def restart(self) -> None:
        """Drop what was observed since the last consolidation, and observe the present layers."""
        self._hooks.close()
        self._run = self._begin(self._every)
        self._run.next_batch()
        self._hooks.enter_context(self._run.observing())

    def remove(self) -> None:
        """Remove all hooks."""
        self._handle.remove()
        self._hooks.close()

    def _after_step(self, *_: Any) -> None:
        run, is_due = self._run, self._run.count == self._every
        try:
            self._consolidate(run) if is_due else run.next_batch()
        except NotFiniteError as error:
            is_due = True
            self._skip(error.layer)
        finally:
            if is_due:
                self.restart()
