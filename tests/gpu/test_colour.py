"""Stacked colour networks on a GPU: recorded steps are those that are launched, and of the CPU.

Skipped without a GPU. CONCEPTORS_TEST_DEVICE=cpu runs the same on a CPU, to try the tests.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.networks import AlexNet
from conceptors.experiments.scenarios import build
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.inputs import FreeRows
from experiments.tasks import blobs

DEVICE = os.environ.get("CONCEPTORS_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(
    DEVICE.startswith("cuda") and not torch.cuda.is_available(), reason="needs a GPU"
)


def learned(method: str, device: str, replay: bool = True, **settings: Any) -> list[Tensor]:
    """What two tasks change of the weights, with more steps than it takes to record them."""
    kind: Any = METHODS[method]

    class Narrow(kind):  # type: ignore[misc]
        def network(self) -> AlexNet:
            return AlexNet(self.scenario.classes, self.seeds, self.settings.dropout, width=8)

    given = {"steps": 8, "batch": 16, "loss": "softmax", "rate": 0.05, "check_every": 3}
    parsed = parse_settings(kind.settings_type, {**given, **settings})
    arrays = blobs("cifar100", train=440)
    place = torch.device(device)
    made = Narrow(
        build("split-cifar100", [0, 1, 2], tasks=2, arrays=arrays).to(place), parsed, place, quiet
    )
    made.replay = replay
    begun = [p.detach().cpu().clone() for p in made.model.parameters()]
    torch.manual_seed(0)
    for number in range(2):
        made.learn(number)
    assert made.test().shape == (3, 2)
    return [p.detach().cpu() - b for p, b in zip(made.model.parameters(), begun)]


CAB: dict[str, Any] = {"aperture": 3.0, "samples": 60}
SLOW = 0.005  # a rate at which rounding does not grow: pools choose another pixel otherwise


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("sgd", {}),
        ("sgd", {"patience": 1, "least_rate": 0.002}),
        ("cab", CAB),
        ("cab", {**CAB, "project": "gradients"}),
        ("cab", {**CAB, "momentum": 0.9}),
    ],
    ids=str,
)
def test_recorded_steps_are_those_of_the_cpu(method: str, settings: dict[str, Any]) -> None:
    theirs = learned(method, "cpu", rate=SLOW, **settings)
    for replay in (False, True):
        ours = learned(method, DEVICE, replay, precision="exact", rate=SLOW, **settings)
        for one, other in zip(ours, theirs):
            assert float((one - other).norm() / other.norm()) < 0.02


@pytest.mark.parametrize(("method", "settings"), [("sgd", {}), ("cab", CAB)])
def test_tf32_is_near(method: str, settings: dict[str, Any]) -> None:
    """Norms all together: one alone moves a hundredth as far as weights, and may be rounding."""
    ours, theirs = (learned(method, place, rate=SLOW, **settings) for place in (DEVICE, "cpu"))
    pairs = [pair for pair in zip(ours, theirs) if pair[0].ndim > 2]
    norms = [[p.flatten() for p in side if p.ndim == 2] for side in (ours, theirs)]
    for one, other in [*pairs, (torch.cat(norms[0]), torch.cat(norms[1]))]:
        assert float((one - other).norm() / other.norm()) < 0.3


def test_dropout_is_drawn_anew_when_a_recording_is_replayed() -> None:
    short, long = (learned("sgd", DEVICE, dropout=0.5, steps=n, rate=1e-3) for n in (8, 9))
    assert all(bool(w.isfinite().all()) for w in [*short, *long])
    assert not torch.equal(short[0], long[0])


@pytest.mark.parametrize("width", [512, 511])  # without and with a bias
def test_inputs_are_projected_exactly_on_tensor_cores(width: int) -> None:
    """What a gradient has in claimed space is rounding of float32, not of TF32."""
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(2, 400, 300, generator=draw) @ torch.randn(2, 300, 512, generator=draw)
    claimed = Conceptor.from_states(states.double(), 1e3).harden()  # 300 of 512 directions
    free = FreeSpace(claimed.to(DEVICE), torch.float32)
    rows = FreeRows(free, width, grouped=True, split=True)
    x, g = (torch.randn(2, 64, n, generator=draw).to(DEVICE) for n in (width, 256))
    weight, bias = rows.gradients(g, x)
    found = weight if bias is None else torch.cat([weight, bias.unsqueeze(-1)], -1)
    inside = found.double() @ claimed.matrix().to(DEVICE)
    assert float(inside.norm() / found.double().norm()) < 3e-5
