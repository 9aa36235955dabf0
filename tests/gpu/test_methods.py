"""Steps of methods that a GPU replays are those that it runs one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods import METHODS
from experiments.learners import learner, narrow

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("cab", {"aperture": 2.0, "samples": 60}),
    ("cab", {"hard": True, "gradient": "unit", "increment_decay": 0.01, "rate": 0.01}),
    ("shield", {}),
    ("cab-readout", {"aperture": 2.0, "lift": 30}),
    ("ewc", {"strength": 1.0, "fisher_samples": 20, "norms": "first"}),
    ("imm", {"l2": 0.01, "fisher_samples": 20, "norms": "first"}),
    ("owm", {"clip": 0.5}),
    ("gpm", {"threshold": 0.6}),
    ("sgp", {"threshold": 0.8}),
    ("trgp", {"threshold": 0.6, "trust": 0.2}),
    ("codecl", {"aperture": 2.0, "free": 2, "overlap": 0.2}),
]


@pytest.mark.parametrize("colour", [False, True], ids=["mlp", "alexnet"])
@pytest.mark.parametrize(("method", "settings"), CASES, ids=str)
def test_replayed_steps_are_the_same(method: str, settings: dict[str, Any], colour: bool) -> None:
    make: Any = narrow if colour else learner
    given = {"steps": 8, "rate": 0.005, **settings} if colour else {"steps": 40, **settings}
    results: list[list[Tensor]] = []
    for replay in (True, False):
        cpu = make(method, 3, **given)
        device = torch.device("cuda")
        one = type(cpu)(cpu.scenario.to(device), replace(cpu.settings), device, cpu.progress)
        one.replay = replay
        assert one.replayable() == replay
        torch.manual_seed(0)
        for number in range(2):
            one.learn(number)
        results.append([p.detach().clone() for p in one.trained()])
    for replayed, plain in zip(*results):
        torch.testing.assert_close(replayed, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["readout", "ncm", "slda", "klda", "ranpac", "acil"])
def test_closed_forms_are_those_of_the_cpu(method: str) -> None:
    cpu = learner(method, 3)
    device = torch.device("cuda")
    gpu = METHODS[method](cpu.scenario.to(device), cpu.settings, device, cpu.progress)
    for number in range(2):
        cpu.learn(number)
        gpu.learn(number)
    assert gpu.test() == pytest.approx(cpu.test(), abs=3)  # a sample
