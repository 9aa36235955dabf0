"""Progress of a run on standard error."""

from __future__ import annotations

import shutil
import sys
import time

from conceptors.experiments.events import Event

_CLEAR = "\r\x1b[K"


class ProgressLine:
    """A line for every finished task; on a terminal also one that changes with every check."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._started = time.monotonic()

    def show(self, event: Event) -> None:
        passing = event.kind == "step"
        if self._quiet or (passing and not self._live):
            return
        text = f"{event}{left(event.share, time.monotonic() - self._started)}"
        self.end()
        if passing:
            text = text[: shutil.get_terminal_size().columns - 1]
        print(text, end="" if passing else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Take the changing line away."""
        if self._live and not self._quiet:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def left(share: float, seconds: float) -> str:
    """About how long it will take, from the share of the work done in so many seconds.

    >>> left(0.25, 60.0)
    ', about 3 min left'
    >>> left(1.0, 60.0)
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
