"""One job after the other in this process: the default, which needs nothing installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conceptors.experiments.engines.base import Finished, Job
from conceptors.experiments.events import Progress
from conceptors.experiments.machine import find_device


class Local:
    """This process. A job that fails raises: it would fail again, and someone is watching."""

    def device(self, name: str) -> str:
        return str(find_device(name))

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Finished]:
        for number, job in enumerate(jobs):
            yield Finished(number, job(progress))
