"""Steps of methods that a GPU replays are those that it runs one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from experiments.learners import TINY
from experiments.tasks import small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("cab-readout", {"aperture": 2.0, "lift": 30}),
        ("owm", {"clip": 0.5}),
        ("owm", {"update": "task"}),
        ("gpm", {"threshold": 0.6}),
        ("sgp", {"threshold": 0.8}),
        ("trgp", {"threshold": 0.6}),
        ("codecl", {"aperture": 2.0, "free": 2}),
    ],
    ids=str,
)
def test_replayed_steps_are_the_same(method: str, settings: dict[str, Any]) -> None:
    device = torch.device("cuda")
    kind = METHODS[method]
    parsed = parse_settings(kind.settings_type, {**TINY, "steps": 40, **settings})
    found = []
    for replay in (True, False):
        learner = kind(small([0, 3]).to(device), parsed, device, quiet)
        learner.replay = replay
        assert learner.replayable() == replay
        for number in range(2):
            learner.learn(number)
        found.append([p.detach().clone() for p in learner.trained()])
    for replayed, plain in zip(*found):
        torch.testing.assert_close(replayed, plain, rtol=1e-3, atol=1e-4)
