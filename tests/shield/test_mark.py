"""Marks tell how far layers answer otherwise to what was remembered."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning


def _drift(before: Tensor, after: Tensor) -> float:
    return float(((after - before).norm() / before.norm()).detach())


def _learned(hard: bool) -> tuple[nn.Linear, Tensor, Shield, torch.optim.Optimizer]:
    layer = nn.Linear(20, 64).double()
    old = torch.randn(500, 8).double() @ torch.randn(8, 20).double()
    shield = Shield(layer, 3.0, hard=hard, warn_at_quota=1.0)
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters(), lr=1e-2))
    shield.remember(old)
    return layer, old, shield, optimizer


def _train(layer: nn.Linear, optimizer: torch.optim.Optimizer) -> None:
    new = torch.randn(500, 20).double()
    for _ in range(50):
        optimizer.zero_grad()
        (layer(new) - 1).square().mean().backward()
        optimizer.step()


def test_nothing_has_moved_at_first() -> None:
    _, _, shield, _ = _learned(hard=False)
    assert shield.moved_since(shield.mark()) == {"Linear": 0.0}


def test_soft_conceptors_move_as_much_as_the_mark_says() -> None:
    layer, old, shield, optimizer = _learned(hard=False)
    mark, before = shield.mark(), layer(old)
    _train(layer, optimizer)
    found = shield.moved_since(mark)["Linear"]
    assert found > 1e-3
    assert found == pytest.approx(_drift(before, layer(old)), rel=0.5)


def test_what_is_claimed_by_hard_conceptors_stays() -> None:
    layer, _, shield, optimizer = _learned(hard=True)
    mark = shield.mark()
    _train(layer, optimizer)
    assert shield.moved_since(mark)["Linear"] < 1e-12


def test_a_layer_that_is_gone_counts_as_moved_beyond_measure() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    shield = Shield(model, warn_at_quota=1.0).remember(torch.randn(50, 4))
    mark = shield.mark()
    model[1] = nn.Linear(8, 2)
    with pytest.warns(UnprotectedWarning, match="weights have moved within claimed space"):
        shield.refresh()
    assert shield.moved_since(mark) == {"0": 0.0, "1": float("inf")}
