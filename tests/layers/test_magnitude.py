"""Weight norm: the direction is protected, and the magnitude follows it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import Adam, AdamW

from conceptors import Shield
from helpers import drift
from layers.case import Draw
from shield.common import train

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: weight_norm(nn.Linear(12, 5)), (12,)),
    "linear-whole": (lambda: weight_norm(nn.Linear(12, 5), dim=None), (12,)),  # type: ignore[arg-type]
    "conv-by-tap": (lambda: weight_norm(nn.Conv1d(6, 4, 4, padding=2, groups=2), dim=2), (6, 2)),
}


def build(name: str) -> Any:
    torch.manual_seed(0)
    layer: Any = LAYERS[name][0]().double()
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.rand_like(p) + 0.5)
    return layer


def batch(name: str, seed: int) -> Tensor:
    return Draw(seed).x(*LAYERS[name][1])


@pytest.mark.parametrize("name", LAYERS)
def test_old_outputs_stay_over_three_tasks(name: str) -> None:
    layer = build(name)
    shield = Shield(layer, 1e6, hard=True)
    optimizer = shield.guard(AdamW(layer.parameters(), lr=0.05, weight_decay=0.1))
    before: list[Tensor] = []
    for number in range(3):
        x, direction = batch(name, number), layer.parametrizations.weight.original1.detach().clone()
        is_full = shield.explain()[0].rank == shield.explain()[0].dim
        first = (layer(x) - 1).square().mean().item()
        train(layer, optimizer, x, 5)
        moved = (layer.parametrizations.weight.original1 - direction).detach().abs().max()
        assert bool(moved < 1e-12) == is_full  # two tasks fill the two groups of the convolution
        assert is_full or (layer(x) - 1).square().mean().item() < first
        shield.remember(x)
        before.append(layer(x).detach())
    for number, outputs in enumerate(before):
        assert drift(layer(batch(name, number)), outputs) < 1e-8


@pytest.mark.parametrize("apart", ["magnitude", "direction"])
def test_optimizers_of_their_own_keep_to_it(apart: str) -> None:
    layer = build("linear")
    g, v = (getattr(layer.parametrizations.weight, f"original{i}") for i in range(2))
    alone, others = ([g], [v, layer.bias]) if apart == "magnitude" else ([v], [g, layer.bias])
    shield = Shield(layer, 1e6, hard=True, increment_decay=0.01)
    optimizers = [shield.guard(Adam(p, lr=0.05)) for p in (alone, others)]
    shield.remember(batch("linear", 0))
    before = layer(batch("linear", 0)).detach()
    for _ in range(5):
        layer.zero_grad()
        layer(batch("linear", 1)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert drift(layer(batch("linear", 0)), before) < 1e-9
