"""How long a training step of every method takes, all of them in turns in one run.

What comes before the steps of a task and after them does not count.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from conceptors._internal.files import write_atomically
from conceptors.experiments.compare import Cell, How, experiment
from conceptors.experiments.events import quiet
from conceptors.experiments.machine import environment
from conceptors.experiments.methods import METHODS, Learner, Settings, parse_settings
from conceptors.experiments.methods.clock import WARM_UP

STEPS = "steps.json"  # in a benchmark's folder
PLAIN = "sgd"  # what all are compared with
_TURNS = 4  # tasks, the last one again where there are fewer; nothing is timed in the first
_TIMED = 100  # steps of each


@dataclass(frozen=True)
class StepTimes:
    """Times of a training step of all seeds together, as multiples of plain SGD's."""

    ratios: dict[str, float]  # by method
    plain: float  # seconds of plain SGD's
    seeds: int
    machine: str
    torch: str
    command: str

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all.

        Methods that are in the file already and not here stay, if they were timed on the same
        machine with as many seeds.
        """
        ratios = self.ratios
        if path.is_file():
            held = StepTimes.read(path)
            alike = (held.machine, held.torch, held.seeds) == (self.machine, self.torch, self.seeds)
            ratios = {**held.ratios, **ratios} if alike else ratios
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**asdict(self), "ratios": ratios}, indent=1)
        write_atomically(path, f"{text}\n".encode())

    @classmethod
    def read(cls, path: Path) -> StepTimes:
        """What `write` wrote; ValueError if it is something else."""
        try:
            made = cls(**json.loads(path.read_bytes()))
            numbers = [made.plain, made.seeds, *made.ratios.values()]
            texts = [made.machine, made.torch, made.command]
            good = all(map(_is_positive, numbers)) and all(isinstance(t, str) for t in texts)
        except (AttributeError, TypeError, ValueError):
            good = False
        if not good:
            raise ValueError(
                f"{path} does not hold times of steps; make it anew with conceptors all --steps"
            )
        return made


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value > 0


def time_steps(cells: Sequence[Cell], how: How, tell: Callable[[str], None]) -> StepTimes:
    """Times of methods on one benchmark, those of plain SGD among them.

    Methods that train no network are left out; also, with a word, those that fail, or learn fewer
    seeds at once.
    """
    found: dict[str, list[float]] = {}
    learners: dict[str, Learner] = {}
    plain = next(cell for cell in cells if cell.method == PLAIN)
    learners[PLAIN] = first = _learner(plain, how)

    def leave_out(method: str, why: str) -> None:
        learners.pop(method, None)
        found.pop(method, None)
        tell(f"{plain.benchmark.name}, without {method}: {why}")

    for cell in cells:
        if cell is plain or not issubclass(METHODS[cell.method].settings_type, Settings):
            continue
        made = _learner(cell, how)
        if len(made.seeds) == len(first.seeds):
            learners[cell.method] = made
        else:
            leave_out(cell.method, "it learns fewer seeds at once")
    for turn in range(_TURNS):
        number = min(turn, len(first.scenario.tasks) - 1)
        for method, learner in list(learners.items()):
            clock = learner.clock
            seconds, steps = clock.seconds, clock.steps
            try:
                learner.learn(number)
            except Exception as error:
                if method == PLAIN:
                    raise
                leave_out(method, f"{type(error).__name__}: {error}")
                continue
            if clock.steps > steps:
                own = (clock.seconds - seconds) / (clock.steps - steps)
                found.setdefault(method, []).append(own)
    where = environment(first.device)
    medians = {method: statistics.median(times) for method, times in found.items()}
    return StepTimes(
        {method: median / medians[PLAIN] for method, median in medians.items()},
        medians[PLAIN],
        len(first.seeds),
        where["device_name"],
        where["torch"],
        f"{how.command} --rows {plain.benchmark.name}",
    )


def _learner(cell: Cell, how: How) -> Learner:
    wanted, kind = experiment(cell, how), METHODS[cell.method]
    device, steps = wanted.check(), WARM_UP + _TIMED
    short = {"steps": steps, "check_every": steps, "validation": 100, "fisher_samples": 50}
    known = {k: v for k, v in short.items() if k in kind.settings_type.__dataclass_fields__}
    settings = parse_settings(kind.settings_type, {**wanted.config(cell.method), **known})
    seeds = wanted.groups(cell.method, wanted.seeds, device)[0]
    torch.manual_seed(seeds[0])
    return kind(wanted.build(seeds, device), settings, device, quiet)
