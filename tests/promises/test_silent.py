"""Mistakes and events that used to cost remembered tasks without a word."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, update_bn

from conceptors import Shield
from shield.common import train


def rows(seed: int, count: int = 60, inputs: int = 8, rank: int = 3) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    left = torch.randn(count, rank, generator=draw, dtype=torch.float64)
    return left @ torch.randn(rank, inputs, generator=draw, dtype=torch.float64)


def drift(now: Tensor, before: Tensor) -> float:
    return float((now.detach() - before).norm() / before.norm())


@pytest.mark.filterwarnings("ignore:little space is left")
@pytest.mark.parametrize("hard", [True, False])
def test_a_head_that_grew_since_a_checkpoint_is_protected(hard: bool) -> None:
    def network(outputs: int) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, outputs)).double()

    old, model = rows(1), network(3)
    shield = Shield(model, hard=hard)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=1e-3))
    shield.remember(old)
    train(model, optimizer, rows(2), 3)
    state, weights = shield.state_dict(), model.state_dict()
    grown = network(5)
    with torch.no_grad():
        for name, parameter in grown.named_parameters():
            parameter[: len(weights[name])] = weights[name]
    resumed = Shield(grown, hard=hard)
    resumed.load_state_dict(state)
    optimizer = resumed.guard(torch.optim.Adam(grown.parameters(), lr=1e-3))
    before = grown(old)[:, :3].detach()
    train(grown, optimizer, rows(2), 1)
    assert drift(grown(old)[:, :3], before) < (1e-9 if hard else 0.02)


def test_a_copy_of_a_model_trains_its_own_statistics() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    shield = Shield(model).remember(rows(1))
    average = AveragedModel(model)
    update_bn([5 + rows(2)], average)
    copied: Any = average.module
    assert float(copied[1].running_mean.abs().max()) > 0.1
    assert shield.n_tasks == 1


@pytest.mark.parametrize("decades", [0, 7, 9, 12])
def test_a_column_of_another_scale_hides_nothing(decades: int) -> None:
    x = rows(1, count=200, rank=4)
    x[:, 0] = 10.0**decades * (1 + 1e-3 * torch.randn(200, dtype=torch.float64))
    torch.manual_seed(0)
    model = nn.Linear(8, 3).double()
    with torch.no_grad():
        model.weight[:, 0] *= 10.0**-decades  # outputs in which every column counts
    shield = Shield(model, hard=True)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=1e-2))
    shield.remember(x)
    before = model(x).detach()
    train(model, optimizer, rows(2, rank=8), 20)
    assert drift(model(x), before) < 1e-4


def test_a_hard_shield_sees_rare_samples_among_many() -> None:
    common = torch.zeros(60_000, 6, dtype=torch.float64)
    common[:, 0] = 1
    common[30_011, 5] = 3.0
    model = nn.Linear(6, 2).double()
    shield = Shield(model, hard=True)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=1e-2))
    shield.remember(common.split(1000))
    rare = common[30_011:30_012]
    before = model(rare).detach()
    train(model, optimizer, torch.randn(20, 6, dtype=torch.float64), 10)
    assert drift(model(rare), before) < 1e-9


class Switching(nn.Module):
    """Uses its layer's weight directly from the third batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 3).double(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        found: Tensor = self.layer(x)
        return found if self.calls < 3 else found + functional.linear(2 * x, self.layer.weight)


def test_every_batch_is_checked_for_direct_uses_of_weights() -> None:
    with pytest.raises(ValueError, match=r"layer \(used by linear"):
        Shield(Switching()).remember(list(rows(1).split(10)))


def _in_mid_task() -> dict[str, Any]:
    model = nn.Linear(8, 3).double()
    shield = Shield(model)
    optimizer = shield.guard(torch.optim.Adam(model.parameters()))
    shield.remember(rows(1))
    train(model, optimizer, rows(2), 1)
    return shield.state_dict()


@pytest.mark.parametrize("part", ["claimed", "notes", "anchors"])
def test_a_state_that_lacks_a_conceptor_or_has_other_shapes_is_refused(part: str) -> None:
    state = _in_mid_task()
    if part == "claimed":
        del state["claimed"]["Linear"]
    else:
        state[part] = {n: torch.zeros(7, 7, 7, dtype=t.dtype) for n, t in state[part].items()}
        assert state[part]
    fresh = Shield(nn.Linear(8, 3).double())
    with pytest.raises(ValueError, match=r"the state is damaged: .*nothing was loaded"):
        fresh.load_state_dict(state)
    assert fresh.n_tasks == 0
