"""A readout on a GPU is the one on the CPU, and its state moves between them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from conceptors import RandomFeatures, Readout
from gpu.test_gpu import DEVICE, pytestmark, with_tf32
from helpers import normal

__all__ = ["pytestmark", "with_tf32"]


def samples(seed: int, count: int = 400) -> tuple[Tensor, Tensor]:
    y = torch.randint(5, (count,), generator=torch.Generator().manual_seed(seed))
    return (normal(9, 5, 64)[y] + normal(seed, count, 64)).float(), y


@pytest.mark.parametrize("lift", [0, 700], ids=["none", "relu"])
def test_scores_are_those_of_the_cpu(lift: int) -> None:
    features = RandomFeatures(64, lift) if lift else 0
    here = Readout(64, features).calibrate(samples(0)[0])
    there = copy.deepcopy(here).to(DEVICE)
    for seed in range(2):
        X, y = samples(seed)
        here.learn(X, y)
        there.learn(X.to(DEVICE), y.to(DEVICE))
    X, y = samples(0)
    scores = there(X.to(DEVICE))
    assert scores.device.type == torch.device(DEVICE).type
    torch.testing.assert_close(scores.cpu(), here(X), rtol=1e-2, atol=1e-2)
    assert float((there.predict(X.to(DEVICE)).cpu() == y).float().mean()) > 0.9
    here.load_state_dict(there.state_dict())
    assert torch.equal(here.predict(X), there.predict(X.to(DEVICE)).cpu())
