"""Learners in closed form of classes that come one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.scenarios import Scenario, Split, Task
from experiments.learners import CPU

CLASSES, INPUTS, TRAIN = 4, 6, 50
CLOSED: list[tuple[str, dict[str, Any]]] = [
    ("readout", {"lift": 60}),
    ("readout", {"lift": 0}),
    ("readout", {"lift": 60, "activation": "relu", "regularization": "0.01"}),
    ("conceptor-ridge", {"lift": 60}),
    ("ncm", {}),
    ("slda", {}),
    ("klda", {"lift": 60}),
    ("klda", {"lift": 40, "members": 3}),
    ("ranpac", {"lift": 60}),
    ("acil", {"lift": 60}),
]


def one_by_one(seeds: list[int]) -> Scenario:
    """Four classes, one a task."""
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(CLASSES, INPUTS, generator=draw)
    tasks = []
    for label in range(CLASSES):

        def split(count: int, label: int = label) -> Split:
            x = centres[label] + torch.randn(count, INPUTS, generator=draw)
            y = torch.full((count,), label)
            return Split.of(x, y, [torch.arange(count) for _ in seeds])

        tasks.append(Task(f"class {label}", split(TRAIN), split(20), split(40)))
    return Scenario("one by one", tasks, seeds, CLASSES, (INPUTS,))


def known(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those settings that the method has."""
    names = METHODS[method].settings_type.__dataclass_fields__
    return {name: value for name, value in settings.items() if name in names}


def learned(method: str, seeds: list[int], **settings: Any) -> Any:
    """A learner that has learned all of them."""
    kind = METHODS[method]
    found = kind(one_by_one(seeds), parse_settings(kind.settings_type, settings), CPU, quiet)
    for number in range(CLASSES):
        found.learn(number)
    return found


def samples(scenario: Scenario, part: str) -> tuple[Tensor, Tensor]:
    """All tasks' inputs and labels, of the first seed."""
    splits = [getattr(task, part) for task in scenario.tasks]
    return torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits])


def lifted(lift: Any, x: Tensor) -> Tensor:
    """Features in float64."""
    found: Tensor = lift(x).double()
    return found
