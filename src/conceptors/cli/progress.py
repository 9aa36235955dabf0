"""Progress of a run, on standard error."""

import shutil
import sys
import time

from conceptors.experiments.events import Event

_SILENCE = 20.0  # seconds after which a file or pipe gets a line for a check


class ProgressLine:
    """A line for every finished task; on a terminal also a line that changes with every check."""

    def __init__(self, quiet: bool) -> None:
        self._quiet, self._live = quiet, sys.stderr.isatty()
        self._shown = time.monotonic()

    def show(self, event: Event) -> None:
        now = time.monotonic()
        if self._quiet or (event.is_step and not self._live and now - self._shown < _SILENCE):
            return
        self._shown = now
        text, end = event.text, "\n"
        self.end()
        if event.is_step and self._live:
            text, end = text[: shutil.get_terminal_size().columns - 1], ""
        print(text, end=end, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the changing line."""
        if self._live and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
