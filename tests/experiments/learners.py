"""Learners of small scenarios."""

from typing import Any

import torch

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS
from conceptors.experiments.methods.settings import parse_settings
from conceptors.experiments.networks import AlexNet
from conceptors.experiments.scenarios.base import Scenario
from conceptors.experiments.scenarios.images import build
from experiments.tasks import blobs, small

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"hidden": "5", "batch": 8, "steps": 12, "check_every": 6, "rate": 0.2}
COLOUR: dict[str, Any] = {"steps": 3, "batch": 8, "loss": "softmax", "rate": 0.05, "check_every": 2}


def known(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those settings that the method has."""
    names = METHODS[method].settings_type.__dataclass_fields__
    return {name: value for name, value in settings.items() if name in names}


def make(method: str, scenario: Scenario, **settings: Any) -> Any:
    """A learner of a scenario, of tiny size unless settings say otherwise."""
    kind = METHODS[method]
    parsed = parse_settings(kind.settings_type, {**known(method, TINY), **settings})
    return kind(scenario, parsed, CPU, quiet)


def learner(
    method: str, seed: int = 0, *, tasks: int = 2, n: int = 60, inputs: int = 6, **settings: Any
) -> Any:
    return make(method, small(seed, tasks=tasks, inputs=inputs, n=n), **settings)


def narrow(
    method: str, seed: int = 0, *, heads: bool = True, train: int = 220, **settings: Any
) -> Any:
    """A learner of two tasks of colour images whose AlexNet has few channels."""
    kind: Any = METHODS[method]

    class Narrow(kind):  # type: ignore[misc]
        def network(self) -> AlexNet:
            return AlexNet(self.scenario.classes, self.scenario.seed, width=2)

    data = blobs("cifar100", train=train)
    scenario = build("split-cifar100", seed, tasks=2, heads=heads, data=data)
    parsed = parse_settings(kind.settings_type, {**COLOUR, **settings})
    return Narrow(scenario, parsed, CPU, quiet)


def taught(learner: Any) -> Any:
    """The learner, after all tasks."""
    for number in range(len(learner.scenario.tasks)):
        learner.learn(number)
    return learner
