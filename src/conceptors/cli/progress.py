"""Progress of a run, on standard error."""

from __future__ import annotations

import shutil
import sys
import time

from conceptors.experiments.events import Event

_SILENCE = 20.0  # seconds after which a file or pipe gets a line for a check


class ProgressLine:
    """A line for every finished task; on a terminal also a line that changes with every check."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._live = quiet, sys.stderr.isatty()
        self._started = self._shown = time.monotonic()

    def show(self, event: Event) -> None:
        now, is_check = time.monotonic(), event.kind == "step"
        if self._quiet or (is_check and not self._live and now - self._shown < _SILENCE):
            return
        self._shown = now
        text = f"{event}{time_left(event.share, now - self._started)}"
        self.end()
        is_changing = is_check and self._live
        if is_changing:
            text = text[: shutil.get_terminal_size().columns - 1]
        print(text, end="" if is_changing else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the changing line."""
        if self._live and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def time_left(share: float, seconds: float) -> str:
    """Estimate the remaining time from the share of the work that was done in some seconds.

    >>> time_left(0.25, 60.0)
    ', about 3 min left'
    >>> time_left(1.0, 60.0)
    ''
    """
    if not 0 < share < 1:
        return ""
    left = seconds * (1 - share) / share
    for limit, unit, name in ((90, 1, "s"), (5400, 60, "min")):
        if left < limit:
            return f", about {max(1, round(left / unit))} {name} left"
    return f", about {left / 3600:.1f} h left"
