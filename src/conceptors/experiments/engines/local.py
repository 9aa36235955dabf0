"""What an engine is, and jobs on this machine: in this process, or in several."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from conceptors.experiments.events import Progress
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
        if min(self._processes, len(jobs)) > 1:
            yield from self._in_processes(jobs, progress)
            return
        for number, job in enumerate(jobs):
            yield Outcome(number, job(progress))

    def _in_processes(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Outcome]:
        count, context = min(self._processes, len(jobs)), multiprocessing.get_context("spawn")
        events = context.SimpleQueue()
        threads = max(1, (os.cpu_count() or 1) // count)
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(count, context, _start, (events, threads, self._imports))
        try:
            running = {pool.submit(_perform, job): number for number, job in enumerate(jobs)}
            while running:
                finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                while not events.empty():
                    progress(events.get())
                for future in finished:
                    yield Outcome(running.pop(future), future.result())
        except BrokenProcessPool:
            raise ChildProcessError(
                "a process of --jobs was killed, perhaps for lack of memory; finished seeds are "
                "kept, and the same command resumes"
            ) from None
        finally:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # nobody waits for its work
            pool.shutdown(cancel_futures=True)


_to_command: list[Any] = []  # in a process of the pool: the queue of the command's progress


def _start(events: Any, threads: int, imports: tuple[str, ...]) -> None:
    """Prepare a process of the pool; it ends with the command, however that ends."""
    _to_command.append(events)
    torch.set_num_threads(threads)
    for file in imports:
        import_methods(file)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _perform(job: Job) -> Any:
    return job(_to_command[0].put)
