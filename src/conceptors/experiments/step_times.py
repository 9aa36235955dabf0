"""How long a training step of every method takes, all of them in turns in one run.

What comes before the steps of a task and after them does not count.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from conceptors._internal.files import write_atomically
from conceptors.experiments.compare import Cell, How, experiment
from conceptors.experiments.events import quiet
from conceptors.experiments.machine import environment
from conceptors.experiments.methods import METHODS, Learner, Settings, parse_settings

STEPS = "steps.json"  # in a benchmark's folder
BESIDE = "sgd"  # what all are compared with
_TURNS = 4  # tasks, the last one again where there are fewer; nothing is timed in the first
_LONG = 110  # of a task; the first ten are not timed


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a training step of all seeds together, by method: medians over tasks."""

    seconds: dict[str, float]
    seeds: int
    machine: str
    torch: str
    command: str

    def ratio(self, method: str) -> float | None:
        """A step as a multiple of plain SGD's.

        >>> StepTimes({"sgd": 2.0, "cab": 3.0}, 10, "a GPU", "2.11", "").ratio("cab")
        1.5
        """
        plain, own = self.seconds.get(BESIDE), self.seconds.get(method)
        return own / plain if own and plain else None

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: Path) -> StepTimes:
        """What `write` wrote; ValueError if it is something else."""
        try:
            made = cls(**json.loads(path.read_text("utf-8")))
            good = all(float(value) > 0 for value in made.seconds.values())
        except (AttributeError, TypeError, ValueError):
            good = False
        if not good:
            raise ValueError(
                f"{path} does not hold times of steps; make it anew with conceptors all --steps"
            )
        return made


def time_steps(cells: Sequence[Cell], how: How) -> StepTimes:
    """Times of methods on one benchmark; those that train no network are left out.

    Args:
        cells: with that of plain SGD, if there is to be something to compare with.
    """
    learners = {cell.method: _learner(cell, how) for cell in cells if _steps_at_all(cell.method)}
    first = next(iter(learners.values()))
    found: dict[str, list[float]] = {method: [] for method in learners}
    for turn in range(_TURNS):
        number = min(turn, len(first.scenario.tasks) - 1)
        for method, learner in learners.items():
            clock = learner.clock
            seconds, steps = clock.seconds, clock.steps
            learner.learn(number)
            if clock.steps > steps:
                found[method].append((clock.seconds - seconds) / (clock.steps - steps))
    where = environment(first.device)
    return StepTimes(
        {method: statistics.median(times) for method, times in found.items() if times},
        len(first.seeds),
        where["device_name"],
        where["torch"],
        f"{how.command} --rows {cells[0].benchmark.name}",
    )


def _steps_at_all(method: str) -> bool:
    return issubclass(METHODS[method].settings_type, Settings)


def _learner(cell: Cell, how: How) -> Learner:
    wanted, kind = experiment(cell, how), METHODS[cell.method]
    device = wanted.check()
    short = {"steps": _LONG, "check_every": _LONG, "validation": 100, "fisher_samples": 50}
    known = {k: v for k, v in short.items() if k in kind.settings_type.__dataclass_fields__}
    settings = parse_settings(kind.settings_type, {**wanted.config(cell.method), **known})
    seeds = wanted.groups(cell.method, wanted.seeds, device)[0]
    torch.manual_seed(seeds[0])
    return kind(wanted.build(seeds, device), settings, device, quiet)
