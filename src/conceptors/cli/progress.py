"""Progress of a run on standard error."""

from __future__ import annotations

import shutil
import sys
import time

from conceptors.experiments.events import Event

_CLEAR = "\r\x1b[K"
_SILENCE = 20.0  # seconds after which something is said into a file or pipe, too


class ProgressLine:
    """A line for every finished task; on a terminal also one that changes with every check.

    Into a file or a pipe, where nothing can change, a check is told after a long silence.
    """

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._started = self._told = time.monotonic()

    def show(self, event: Event) -> None:
        passing = event.kind == "step"
        now = time.monotonic()
        if self._quiet or (passing and not self._live and now - self._told < _SILENCE):
            return
        self._told = now
        text = f"{event}{time_left(event.share, now - self._started)}"
        self.end()
        changing = passing and self._live
        if changing:
            text = text[: shutil.get_terminal_size().columns - 1]
        print(text, end="" if changing else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Take the changing line away."""
        if self._live and not self._quiet:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def time_left(share: float, seconds: float) -> str:
    """About how long it will take, from the share of the work done in so many seconds.

    >>> time_left(0.25, 60.0)
    ', about 3 min left'
    >>> time_left(1.0, 60.0)
    ''
    """
    if not 0 < share < 1:
        return ""
    rest = seconds * (1 - share) / share
    if rest < 90:
        return f", about {max(1, round(rest))} s left"
    if rest < 5400:
        return f", about {round(rest / 60)} min left"
    return f", about {rest / 3600:.1f} h left"
