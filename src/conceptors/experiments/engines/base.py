"""What every engine does: jobs go in, what they come to comes out, in whatever order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from conceptors.experiments.events import Progress


class Job(Protocol):
    """Work that can be done in any process, and that can be pickled; `str` names it for people."""

    @property
    def key(self) -> str:
        """A file name that is the same for the same work, also in a command started again."""

    def __call__(self, progress: Progress) -> Any:
        """Do it; what it comes to, in plain values that JSON can hold."""


@dataclass(frozen=True)
class Finished:
    """A job that is done, or was given up."""

    number: int  # of the job in the list that was given
    value: Any = None  # what it came to
    failure: str = ""  # why it was given up: the traceback of the last attempt


class Engine(Protocol):
    """A place where jobs are done. It writes no results: whoever asked for the work does."""

    def device(self, name: str) -> str:
        """The device that jobs are to use, from the one asked for; ValueError if impossible."""

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Finished]:
        """Do the jobs; each is given out as soon as it is finished."""
