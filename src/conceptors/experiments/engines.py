"""Where experiments run: in this process, in several processes, or on a Ray cluster."""

import logging
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from conceptors.experiments.events import Event, Progress
from conceptors.experiments.methods import import_methods

Job = Callable[[Progress], Any]  # work that can be pickled and done in any process
_ATTEMPTS = 3  # after so many failures Ray gives a job up; the same command tries it again
_PATIENCE = 5.0  # seconds for an address to answer; Ray itself would try for minutes


@dataclass(frozen=True)
class Outcome:
    """The value that a job returned, or why it was given up."""

    number: int  # of the job in the list
    value: Any = None
    failure: str = ""  # the traceback of the last attempt


class Local:
    """This machine. A job that fails raises.

    Args:
        processes: jobs that run at once; each process has its share of the CPU's cores.
        imports: files with your own methods, which every process loads.
    """

    def __init__(self, processes: int = 1, imports: Sequence[str] = ()) -> None:
        self._processes, self._imports = processes, tuple(imports)

    def device(self, name: str) -> str:
        """The device that jobs use when this one is asked for; ValueError if impossible."""
        return str(find_device(name))

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Outcome]:
        """Do the jobs, and return each as soon as it is finished."""
        count = min(self._processes, len(jobs))
        if count < 2:
            yield from (Outcome(number, job(progress)) for number, job in enumerate(jobs))
            return
        threads = max(1, (os.cpu_count() or 1) // count)
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _end_with_command)
        try:
            numbers = {
                pool.submit(_perform, job, threads, self._imports): number
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


class Ray:
    """A Ray cluster, whose jobs may use some CPUs and GPUs each. Failed jobs are tried again.

    Args:
        address: "host:6379" or "auto"; default: RAY_ADDRESS, or else a Ray that is started here
            and ends with the command.
        imports: files with your own methods, which every machine loads.
    """

    def __init__(
        self, cpus: int = 1, gpus: float = 0, address: str = "", imports: Sequence[str] = ()
    ) -> None:
        if find_spec("ray") is None:
            raise ImportError("--engine ray needs Ray: pip install 'conceptors[ray]'")
        if not 0 <= gpus < float("inf"):
            raise ValueError(f"--gpus-per-run must be a finite number >= 0, got {gpus:g}")
        self._cpus, self._gpus, self._imports = cpus, gpus, tuple(imports)
        self._address = address or os.environ.get("RAY_ADDRESS") or "local"

    def device(self, name: str) -> str:
        """The device on the machine of a job, which may have a GPU where this one has none."""
        if name == "auto":
            return "cuda" if self._gpus else "cpu"
        if name.startswith("cuda") and not self._gpus:
            raise ValueError(f"--device {name} on another machine needs --gpus-per-run 1")
        return name

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Outcome]:
        if not jobs:
            return
        ray = self._connect()
        retries = {"max_retries": _ATTEMPTS - 1, "retry_exceptions": True}
        task = ray.remote(num_cpus=self._cpus, num_gpus=self._gpus, **retries)(_perform)
        running = {task.remote(job, self._cpus, self._imports): k for k, job in enumerate(jobs)}
        try:
            while running:
                ready = ray.wait(list(running), num_returns=1)[0][0]
                number = running.pop(ready)
                try:
                    value, events = ray.get(ready)
                except Exception as error:  # the job failed, or its machine was lost
                    yield Outcome(number, failure=str(error))
                    continue
                for event in events:
                    progress(event)
                yield Outcome(number, value)
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise ConnectionError(
                f"lost the Ray at {self._address} ({_line(error)}); finished seeds are kept, and "
                f"the same command resumes"
            ) from error
        finally:  # nobody waits for them
            with suppress(Exception):
                for left in running:
                    ray.cancel(left, force=True)

    def _connect(self) -> Any:
        """Connect to Ray until the process ends, because a search asks again for every trial."""
        import ray

        try:
            if not ray.is_initialized():
                host, _, port = self._address.removeprefix("ray://").rpartition(":")
                if host and port.isdigit():
                    socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
                options = {"include_dashboard": False} if self._address == "local" else {}
                ray.init(self._address, log_to_driver=False, logging_level=logging.ERROR, **options)
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise ConnectionError(
                f"cannot reach a Ray at {self._address!r} ({_line(error)}); start one with `ray "
                f"start --head`, or leave --address out to use this machine"
            ) from error
        for node in nodes:
            if node.get("CPU", 0) >= self._cpus and node.get("GPU", 0) >= self._gpus:
                return ray
        raise ValueError(  # Ray would wait for ever
            f"a run asks for {self._cpus} CPUs and {self._gpus:g} GPUs, and no machine of this "
            f"Ray has them; lower --cpus-per-run or --gpus-per-run"
        )


Engine = Local | Ray


def find_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is the first GPU, or else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        hint = "did you mean 'cuda'? " if name == "gpu" else ""
        raise ValueError(
            f"device {name!r} cannot be used; {hint}this machine has: {', '.join(available)}"
        ) from None
    return device


def _perform(job: Job, threads: int, imports: Sequence[str]) -> tuple[Any, list[Event]]:
    """Do a job in a separate process; return its value and the events of its tasks."""
    for file in imports:
        import_methods(file)
    torch.set_num_threads(threads)
    events: list[Event] = []
    value = job(lambda event: None if event.is_step else events.append(event))
    return value, events


def _end_with_command() -> None:
    """End this process with the command, even if that is killed."""
    parent = multiprocessing.parent_process()

    def end() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
