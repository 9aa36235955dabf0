"""What every engine does: jobs go in, what they come to comes out, in whatever order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conceptors.experiments.events import Progress

Job = Callable[[Progress], Any]  # work that can be pickled and done in any process


@dataclass(frozen=True)
class Outcome:
    """What a job came to, or why it was given up."""

    number: int  # of the job in the list that was given
    value: Any = None
    failure: str = ""  # the traceback of the last attempt


class Engine(Protocol):
    """A place where jobs are done. It writes no results: whoever asked for the work does."""

    def device(self, name: str) -> str:
        """The device that jobs are to use, from the one asked for; ValueError if impossible."""

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Outcome]:
        """Do the jobs; each is returned as soon as it is finished."""
