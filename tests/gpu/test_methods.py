"""Steps of methods that a GPU replays are those that it runs one by one, and those of the CPU.

Skipped without a GPU. CONCEPTORS_TEST_DEVICE=cpu runs the same on a CPU, to try the tests.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.networks import AlexNet
from conceptors.experiments.scenarios import build
from experiments.learners import TINY
from experiments.tasks import blobs, small

DEVICE = torch.device(os.environ.get("CONCEPTORS_TEST_DEVICE", "cuda"))
pytestmark = pytest.mark.skipif(
    DEVICE.type == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"
)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sgd", {"average": 0.9, "gradient": "unit"}),
        ("cab", {"aperture": 2.0, "increment_decay": 0.001}),
        ("cab-readout", {"aperture": 2.0, "lift": 30}),
        ("shield", {}),
        ("ewc", {"strength": 1.0}),
        ("owm", {}),
        ("gpm", {"threshold": 0.6}),
        ("sgp", {"threshold": 0.8}),
        ("trgp", {"threshold": 0.6}),
        ("codecl", {"aperture": 2.0}),
    ],
    ids=str,
)
def test_replayed_steps_are_the_same(method: str, settings: dict[str, Any]) -> None:
    kind = METHODS[method]
    parsed = parse_settings(kind.settings_type, {**TINY, "steps": 40, **settings})
    weights = []
    for replay in (True, False):
        learner = kind(small(3).to(DEVICE), parsed, DEVICE, quiet)
        learner.replay = replay
        for number in range(2):
            learner.learn(number)
        weights.append([p.detach().clone() for p in learner.trained()])
    for replayed, plain in zip(*weights):
        torch.testing.assert_close(replayed, plain, rtol=1e-3, atol=1e-4)


def learned(method: str, device: torch.device, **settings: Any) -> list[Tensor]:
    """How two tasks change the weights of a narrow AlexNet."""
    kind: Any = METHODS[method]

    class Narrow(kind):  # type: ignore[misc]
        def network(self) -> AlexNet:
            return AlexNet(self.scenario.classes, self.scenario.seed, width=8)

    # at this rate rounding does not grow: pools choose another pixel otherwise
    given = {"steps": 8, "batch": 16, "loss": "softmax", "rate": 0.005, "check_every": 3}
    parsed = parse_settings(kind.settings_type, {**given, **settings})
    scenario = build("split-cifar100", 0, tasks=2, arrays=blobs("cifar100", train=440))
    learner = Narrow(scenario.to(device), parsed, device, quiet)
    before = [p.detach().cpu().clone() for p in learner.model.parameters()]
    for number in range(2):
        learner.learn(number)
    return [p.detach().cpu() - b for p, b in zip(learner.model.parameters(), before)]


@pytest.mark.parametrize(("precision", "close"), [("exact", 0.02), ("tf32", 0.3)])
@pytest.mark.parametrize(("method", "settings"), [("sgd", {}), ("cab", {"aperture": 3.0})])
def test_colour_networks_learn_as_on_the_cpu(
    method: str, settings: dict[str, Any], precision: str, close: float
) -> None:
    pairs = zip(
        learned(method, DEVICE, precision=precision, **settings),
        learned(method, torch.device("cpu"), **settings),
    )
    matrices = [pair for pair in pairs if pair[0].ndim > 1]
    for ours, theirs in matrices:
        assert float((ours - theirs).norm() / theirs.norm()) < close
