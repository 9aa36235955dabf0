"""Weights that several layers share, and blocks that several optimizers or groups split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from conceptors import Shield
from helpers import drift, eye
from layers.cases import Draw
from shield.common import mlp


class Twins(nn.Module):
    """Two linear layers that share their weight or their bias."""

    def __init__(self, shared: str) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(9, 9), nn.Linear(9, 9)
        setattr(self.b, shared, getattr(self.a, shared))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh())  # type: ignore[no-any-return]


class Language(nn.Module):
    """Token embeddings that are the output weights too."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.tokens, self.mix = nn.Embedding(12, 8), nn.Linear(8, 8)
        self.out = nn.Linear(8, 12, bias=bias)
        self.out.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.mix(self.tokens(tokens)).tanh())  # type: ignore[no-any-return]


VECTORS = Draw(0, batch=2).x(9), Draw(1, batch=4).x(9)
TOKENS = torch.tensor([[0, 2, 4]]), torch.tensor([[1, 2, 3], [5, 7, 9]])
MODELS: dict[str, tuple[Callable[[], Any], tuple[Tensor, Tensor], list[str]]] = {
    "shared weight": (lambda: Twins("weight"), VECTORS, ["a"]),
    "shared bias": (lambda: Twins("bias"), VECTORS, ["a", "b"]),
    # the same numbers are rows of one block and groups of another: both are protected
    "tied embedding": (lambda: Language(False), TOKENS, ["tokens", "mix", "out"]),
    "tied, with a bias": (lambda: Language(True), TOKENS, ["tokens", "mix", "out"]),
    "nothing shared": (lambda: mlp(12, 9), VECTORS, ["0", "2"]),
}


def halves(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    weights = [p for p in model.parameters() if p.ndim > 1]
    return weights, [p for p in model.parameters() if p.ndim == 1]


def groups_with_decay(model: nn.Module) -> list[Optimizer]:
    weights, biases = halves(model)
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0}]
    return [optim.AdamW(groups, lr=0.02)]


def two_optimizers(model: nn.Module) -> list[Optimizer]:
    weights, biases = halves(model)
    return [optim.SGD(weights, lr=0.02, momentum=0.5), optim.Adam(biases, lr=0.02)]


def one_after_another(model: nn.Module) -> list[Optimizer]:
    return [optim.SGD(model.parameters(), lr=0.02), optim.Adam(model.parameters(), lr=0.01)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("make", [groups_with_decay, two_optimizers, one_after_another])
def test_shared_weights_and_split_blocks_are_protected(
    make: Callable[[nn.Module], list[Optimizer]], name: str
) -> None:
    build, (old, new), names = MODELS[name]
    torch.manual_seed(0)
    model = build().double()
    shield = Shield(model, 1e4, hard=True)
    optimizers = [shield.guard(optimizer) for optimizer in make(model)]
    before = shield.remember(old).model(old).detach()
    goal, losses = Draw(3).normal(*model(new).shape), []
    for _ in range(50):
        model.zero_grad()
        loss = (model(new) - goal).square().mean()
        losses.append(float(loss.detach()))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    assert drift(model(old), before) < 1e-10
    assert losses[-1] < 0.99 * losses[0]
    assert list(shield.quota()) == names


def test_each_user_of_a_shared_weight_has_its_own_bias_unit() -> None:
    model, x = Twins("weight").double(), Draw(0, batch=7).x(9)
    claimed = Shield(model, 2.0).remember(x).conceptors()["a"]
    hidden = model.a(x).tanh().detach()
    units = eye(2)[:, None].expand(2, 7, 2)
    rows = torch.cat([torch.stack([x, hidden]), units], -1).flatten(0, 1)
    odds = 2.0**2 * rows.mT @ rows / 14
    expected = odds @ torch.linalg.inv(odds + eye(11))
    torch.testing.assert_close(claimed.matrix()[0], expected, rtol=0, atol=1e-10)
