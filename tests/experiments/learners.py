"""Learners of small scenarios."""

from __future__ import annotations

from typing import Any

import torch

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.networks import AlexNet
from conceptors.experiments.scenarios import build
from experiments.tasks import blobs, small

CPU = torch.device("cpu")
TINY = {"hidden": "5", "batch": 8, "steps": 12, "check_every": 6, "rate": 0.2}


def learner(
    method: str, seeds: list[int], *, tasks: int = 2, n: int = 60, inputs: int = 6, **settings: Any
) -> Any:
    kind = METHODS[method]
    parsed = parse_settings(kind.settings_type, {**TINY, **settings})
    return kind(small(seeds, tasks=tasks, inputs=inputs, n=n), parsed, CPU, quiet)


COLOUR: dict[str, Any] = {
    "steps": 3,
    "batch": 8,
    "loss": "softmax",
    "rate": 0.05,
    "check_every": 2,
}


def narrow(
    method: str, seeds: list[int], *, heads: bool = True, train: int = 220, **settings: Any
) -> Any:
    """A learner of colour images whose AlexNet has few channels."""
    kind: Any = METHODS[method]

    class Narrow(kind):  # type: ignore[misc]
        def network(self) -> AlexNet:
            return AlexNet(self.scenario.classes, self.seeds, self.settings.dropout, width=2)

    arrays = blobs("cifar100", train=train)
    scenario = build("split-cifar100", seeds, tasks=2, heads=heads, arrays=arrays)
    parsed = parse_settings(kind.settings_type, {**COLOUR, **settings})
    return Narrow(scenario, parsed, CPU, quiet)
