"""Jobs as tasks of a Ray cluster, or of a Ray that is started on this machine."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from conceptors import __version__
from conceptors.experiments.engines.local import Job, Outcome, perform
from conceptors.experiments.events import Event, Progress

_ATTEMPTS = 3  # after so many failures a job is given up; the same command tries it again
_PATIENCE = 5.0  # seconds for an address to answer; Ray itself would try for minutes


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
        common = (self._cpus, self._imports, __version__)
        running = {task.remote(job, *common): number for number, job in enumerate(jobs)}
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


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _perform(
    job: Job, cpus: int, imports: tuple[str, ...], version: str
) -> tuple[Any, list[Event]]:
    """Do a job on the machine that it was sent to."""
    if version != __version__:
        raise RuntimeError(
            f"this machine has conceptors {__version__}, but the command uses {version}; install "
            f"the same version on both"
        )
    return perform(job, cpus, imports)
