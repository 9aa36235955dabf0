"""What engines share whose jobs run in other processes: what a job may use, and how it is done."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from conceptors import __version__
from conceptors.experiments.engines.base import Job
from conceptors.experiments.events import Event, Progress
from conceptors.experiments.experiment import ExperimentError
from conceptors.experiments.methods import import_methods

ATTEMPTS = 3  # after so many failures a job is given up; a command started again tries it again


@dataclass(frozen=True)
class Resources:
    """What every job may use, and what it has to load first."""

    cpus: int = 1
    gpus: float = 0
    imports: tuple[str, ...] = ()  # files with methods of one's own, which all machines can read
    version: str = __version__  # of whoever asked for the work

    def __post_init__(self) -> None:
        if self.cpus < 1 or not 0 <= self.gpus < float("inf"):
            raise ExperimentError(
                f"a run takes at least 1 CPU and 0 GPUs, got {self.cpus} and {self.gpus:g}; change "
                f"--cpus-per-run or --gpus-per-run"
            )

    def device(self, name: str) -> str:
        """The device of a job: there may be a GPU where it runs, and none here, or vice versa."""
        if name == "auto":
            return "cuda" if self.gpus else "cpu"
        if name.startswith("cuda") and not self.gpus:
            raise ExperimentError(f"--device {name} on another machine needs --gpus-per-run 1")
        return name


def perform(job: Job, resources: Resources) -> dict[str, Any]:
    """Do a job in the process it was sent to: its value and the tasks it learned, or its failure.

    A failure is text: the exception itself may be of a kind that the other side does not know.
    """
    try:
        return _perform(job, resources)
    except Exception:
        return {"failure": traceback.format_exc()}


def _perform(job: Job, resources: Resources) -> dict[str, Any]:
    if resources.version != __version__:
        raise RuntimeError(
            f"this machine has conceptors {__version__}, the command came from "
            f"{resources.version}; install the same on both"
        )
    for file in resources.imports:
        import_methods(file)
    torch.set_num_threads(resources.cpus)
    events: list[dict[str, Any]] = []

    def keep(event: Event) -> None:
        if event.kind == "task":
            events.append(asdict(event))

    return {"value": job(keep), "events": events}


def replay(report: Mapping[str, Any], progress: Progress) -> Any:
    """Tell what a job told where it was done; its value."""
    for told in report["events"]:
        event = Event(**told)
        progress(replace(event, seeds=tuple(event.seeds), rows=tuple(event.rows)))
    return report["value"]
