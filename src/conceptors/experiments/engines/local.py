"""What an engine is, and jobs on this machine: in this process, or in several."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from conceptors.experiments.events import Event, Progress
from conceptors.experiments.machine import find_device
from conceptors.experiments.methods import import_methods

Job = Callable[[Progress], Any]  # work that can be pickled and done in any process


@dataclass(frozen=True)
class Outcome:
    """The value that a job returned, or why it was given up."""

    number: int  # of the job in the list
    value: Any = None
    failure: str = ""  # the traceback of the last attempt


class Engine(Protocol):
    """A place where jobs are done. It writes no results; its caller does."""

    def device(self, name: str) -> str:
        """The device that jobs use when this one is asked for; ValueError if impossible."""

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Outcome]:
        """Do the jobs, and return each as soon as it is finished."""


class Local:
    """This machine. A job that fails raises.

    Args:
        processes: jobs that run at once; each process has its share of the CPU's cores.
        imports: files with your own methods, which every process loads.
    """

    def __init__(self, processes: int = 1, imports: Sequence[str] = ()) -> None:
        self._processes, self._imports = processes, tuple(imports)

    def device(self, name: str) -> str:
        return str(find_device(name))

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Outcome]:
        count = min(self._processes, len(jobs))
        if count > 1:
            yield from self._in_processes(count, jobs, progress)
            return
        for number, job in enumerate(jobs):
            yield Outcome(number, job(progress))

    def _in_processes(
        self, count: int, jobs: Sequence[Job], progress: Progress
    ) -> Iterator[Outcome]:
        threads = max(1, (os.cpu_count() or 1) // count)
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _end_with_command)
        try:
            numbers = {
                pool.submit(perform, job, threads, self._imports): number
                for number, job in enumerate(jobs)
            }
            for finished in as_completed(numbers):
                value, events = finished.result()
                for event in events:
                    progress(event)
                yield Outcome(numbers[finished], value)
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process of --jobs was killed, perhaps for lack of memory; finished seeds are "
                "kept, and the same command resumes"
            ) from None
        finally:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # nobody waits for its work
            pool.shutdown(cancel_futures=True)


def _end_with_command() -> None:
    """End this process with the command, even if that is killed."""
    parent = multiprocessing.parent_process()

    def end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def perform(job: Job, threads: int, imports: Sequence[str]) -> tuple[Any, list[Event]]:
    """Do a job in a separate process; return its value and the events of its tasks."""
    for file in imports:
        import_methods(file)
    torch.set_num_threads(threads)
    events: list[Event] = []
    value = job(lambda event: events.append(event) if event.kind == "task" else None)
    return value, events
