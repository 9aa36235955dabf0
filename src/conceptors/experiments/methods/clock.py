"""How long training steps take, without what comes before and between them."""

from __future__ import annotations

import time

import torch

WARM_UP = 10  # steps of a task that are not counted: some of them are being recorded


class Clock:
    """Seconds of training steps.

    Attributes:
        seconds: of the steps that were counted.
        steps: how many those are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._since: tuple[float, int] | None = None
        self.seconds, self.steps = 0.0, 0

    def go(self, done: int) -> None:
        """From here on steps are counted, if enough of the task are done; else nothing happens."""
        if self._since is None and done >= WARM_UP:
            self._since = self._now(), done

    def stop(self, done: int) -> None:
        """Until `go`, time passes that is not of steps."""
        if self._since is not None:
            began, before = self._since
            self.seconds += self._now() - began
            self.steps += done - before
            self._since = None

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
