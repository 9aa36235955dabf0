"""cifar: split CIFAR-100 with five seeds as one network, CAB against plain SGD."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import torch

from conceptors.bench.measure import compared, effort, side_by_side, timed
from conceptors.bench.row import Row, Size, aim, pick
from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, Learner, parse_settings
from conceptors.experiments.methods.lesson import Lesson
from conceptors.experiments.networks import AlexNet
from conceptors.experiments.scenarios import Scenario, build
from conceptors.experiments.scenarios.data import Arrays

_EPOCHS, _TASKS = 40, 10


def cifar(size: Size, device: torch.device) -> list[Row]:
    """A step after one remembered task, and a whole run reckoned from it, on made-up images."""
    real = device.type == "cuda" and size != "tiny"
    width, batch, seeds = (64, 64, 5) if real else pick(size, (2, 4, 2), (8, 16, 2), (16, 64, 5))
    scenario = _scenario(seeds, 50_000 if real else pick(size, 220, 1000, 5000), device)
    plain, ours = (_learner(method, scenario, width, batch, device) for method in ("sgd", "cab"))
    plain.learn(0)
    ours.learn(0)
    remembering = timed(lambda: ours.end_task(0), device)  # again: the first time warms up
    learners = {"plain": plain, "ours": ours}
    with ours.passes():
        calls = {name: _steps(learner) for name, learner in learners.items()}
        found = side_by_side(calls, device, **effort(size, device))
    about = f"split CIFAR-100, AlexNet of {width} channels, {seeds} seeds x {batch}"
    row = Row("cifar", f"{about}: a step of CAB against SGD", target=aim(1.25, size, device))
    steps = round(_EPOCHS * min(scenario.tasks[0].train.sizes()) / batch)
    whole = _TASKS * (steps * found["ours"].median + remembering)
    return [
        compared(row, found["ours"], found["plain"]),
        Row(
            "cifar",
            f"{about}: {_TASKS} tasks of {_EPOCHS} epochs with CAB, reckoned from steps",
            ours=whole,
            target=aim(300.0, size, device),
            notes={"remember_seconds": remembering, "steps_a_task": steps},
        ),
    ]


def _learner(
    method: str, scenario: Scenario, width: int, batch: int, device: torch.device
) -> Learner:
    kind: Any = METHODS[method]

    class Sized(kind):  # type: ignore[misc]
        def network(self) -> AlexNet:
            return AlexNet(self.scenario.classes, self.seeds, width=width)

    given = {"loss": "softmax", "rate": 0.01, "batch": batch, "steps": 8}
    own = {"aperture": 4.0} if method == "cab" else {}
    made: Learner = Sized(
        scenario, parse_settings(kind.settings_type, {**given, **own}), device, quiet
    )
    return made


def _steps(learner: Learner) -> Any:
    """One step of the second task after the other, the same few over and over."""
    lesson, numbers = Lesson(learner, 1), cycle(range(learner.steps(1)))
    return lambda: lesson.step(next(numbers))


def _scenario(seeds: int, count: int, device: torch.device) -> Scenario:
    draw = torch.Generator().manual_seed(0)

    def images(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(256, (n, 3, 32, 32), generator=draw, dtype=torch.uint8)
        return x, (torch.randperm(n, generator=draw) % 100).byte()

    tasks = _TASKS if count >= 1000 else 2
    arrays = Arrays(*images(count), *images(max(100, count // 10)))
    return build("split-cifar100", list(range(seeds)), tasks=tasks, arrays=arrays).to(device)
