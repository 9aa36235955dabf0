"""Jobs as tasks of a Ray cluster, or of a Ray that is started on this machine."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from conceptors.experiments.engines.base import Finished, Job
from conceptors.experiments.engines.remote import ATTEMPTS, Resources, perform, replay
from conceptors.experiments.events import Progress
from conceptors.experiments.experiment import ExperimentError

_PATIENCE = 5.0  # seconds for an address to answer; Ray itself would try for minutes


class Ray:
    """Tasks with resources; those of workers that were lost are done again.

    Args:
        resources: what each job may use.
        address: of a cluster ("host:6379", "ray://host:10001", "auto"); by default that in
            RAY_ADDRESS, or a Ray that is started here and ends with the command. A Ray that this
            process is connected to already is used as it is.
    """

    def __init__(self, resources: Resources | None = None, address: str | None = None) -> None:
        if find_spec("ray") is None:
            raise ImportError("--engine ray needs Ray: pip install 'conceptors[ray]'")
        self._resources = resources or Resources()
        self._address = address or os.environ.get("RAY_ADDRESS") or "local"

    def device(self, name: str) -> str:
        return self._resources.device(name)

    def work(self, jobs: Sequence[Job], progress: Progress) -> Iterator[Finished]:
        if not jobs:
            return
        ray = self._connect()
        # Ray's own retries are off: attempts are counted here, whatever made them fail
        task = ray.remote(perform).options(
            num_cpus=self._resources.cpus, num_gpus=self._resources.gpus, max_retries=0
        )
        running = {task.remote(job, self._resources): n for n, job in enumerate(jobs)}
        failures: Counter[int] = Counter()
        try:
            while running:
                ready = self._next(ray, list(running))
                number = running.pop(ready)
                try:
                    report = ray.get(ready)
                except Exception as error:  # its worker was lost, or could not be started
                    report = {"failure": str(error)}
                if "failure" not in report:
                    yield Finished(number, replay(report, progress))
                    continue
                failures[number] += 1
                if failures[number] < ATTEMPTS:
                    running[task.remote(jobs[number], self._resources)] = number
                else:
                    yield Finished(number, failure=report["failure"])
        finally:  # nobody waits for them any more
            with suppress(Exception):
                for left in running:
                    ray.cancel(left, force=True)

    def _next(self, ray: Any, running: list[Any]) -> Any:
        """A task that is over."""
        try:
            return ray.wait(running, num_returns=1)[0][0]
        except (ray.exceptions.RayError, ConnectionError) as error:
            raise ConnectionError(
                f"lost the Ray at {self._address} ({_line(error)}); what is finished is kept, the "
                f"same command resumes"
            ) from error

    def _connect(self) -> Any:
        """Ray, connected; it stays so until the process ends, for a search comes back for more."""
        import ray

        if not ray.is_initialized():
            own = self._address == "local"
            if not own:
                _knock(self._address)
            try:
                ray.init(
                    address=self._address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **({"include_dashboard": False} if own else {}),
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise _unreached(self._address, _line(error)) from error
        self._check_room(ray)
        return ray

    def _check_room(self, ray: Any) -> None:
        """A job that no machine has room for would wait for ever."""
        asked = {"CPU": self._resources.cpus, "GPU": self._resources.gpus}
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(all(m.get(kind, 0) >= n for kind, n in asked.items()) for m in machines):
            return
        there = "; ".join(f"{m.get('CPU', 0):g} and {m.get('GPU', 0):g}" for m in machines)
        message = (
            f"a run asks for {asked['CPU']} CPUs and {asked['GPU']:g} GPUs, and no machine of this "
            f"Ray has them ({there}); lower --cpus-per-run or --gpus-per-run"
        )
        if self._address == "local":
            raise ExperimentError(message)
        warnings.warn(f"{message}, or wait for the cluster to grow", stacklevel=2)


def _knock(address: str) -> None:
    """ConnectionError for a host and port where nobody answers."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return  # "auto" and the like: Ray knows what to make of them
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _unreached(address, _line(error)) from error


def _unreached(address: str, why: str) -> ConnectionError:
    return ConnectionError(
        f"cannot reach a Ray at {address!r} ({why}); start one with `ray start --head`, or leave "
        f"--address out for one on this machine"
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
