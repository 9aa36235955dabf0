"""Jobs on this machine: one after the other in this process, or in several processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from conceptors.experiments.engines.base import Job, Outcome
from conceptors.experiments.events import Progress
from conceptors.experiments.machine import find_device
from conceptors.experiments.methods import import_methods


class Local:
    """This machine. A job that fails raises: it would fail again, and someone is watching.

    Args:
        processes: jobs that are done at once; each process has its share of the CPU's cores.
        imports: files with one's own methods, which every process loads.
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
        start = (events, threads, self._imports)
        pool = ProcessPoolExecutor(count, context, _start, start)
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
                "a process of --jobs was killed, maybe for lack of memory; finished seeds are "
                "kept, the same command resumes"
            ) from None
        finally:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # idle, or nobody waits for its work any more
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
