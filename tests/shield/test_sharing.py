"""Weights that several layers share, and blocks that several optimizers or groups split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from conceptors import Shield
from layers.cases import Draw

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=0.02, weight_decay=0.1),
}


class Twins(nn.Module):
    """Two linear layers with one weight, and a bias each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(9, 9), nn.Linear(9, 9)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh())  # type: ignore[no-any-return]


class OneBias(nn.Module):
    """Two linear layers with one bias, and a weight each."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(9, 9), nn.Linear(9, 9)
        self.b.bias = self.a.bias

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


def check(model: nn.Module, old: Tensor, new: Tensor, make: Callable[..., Any]) -> Shield:
    """Training on new data leaves the outputs on old data alone, and is of use."""
    model = model.double()
    shield = Shield(model, 1e4, hard=True)
    made = make(model)
    optimizers = made if isinstance(made, list) else [made]
    for optimizer in optimizers:
        shield.guard(optimizer)
    shield.remember(old)
    before = model(old).detach()
    goal = Draw(3).normal(*model(new).shape)
    losses = []
    for _ in range(50):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = (model(new) - goal).square().mean()
        losses.append(float(loss.detach()))
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    assert float((model(old).detach() - before).norm()) < 1e-10 * float(before.norm())
    assert losses[-1] < 0.99 * losses[0]
    return shield


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (Twins, ["a"]),
        (OneBias, ["a", "b"]),
    ],
)
def test_shared_weights_serve_all_who_use_them(
    kind: type[nn.Module], names: list[str], name: str
) -> None:
    torch.manual_seed(0)
    model = kind()
    old, new = Draw(0, batch=2).x(9), Draw(1, batch=4).x(9)
    shield = check(model, old, new, lambda m: OPTIMIZERS[name](m.parameters()))
    assert list(shield.quota()) == names


def test_each_user_of_a_shared_weight_has_its_own_bias_unit() -> None:
    torch.manual_seed(0)
    model = Twins().double()
    x = Draw(0, batch=7).x(9)
    claimed = Shield(model, 2.0).remember(x).conceptors()["a"]
    hidden = model.a(x).tanh().detach()
    units = torch.eye(2).double()
    rows = torch.cat(
        [torch.cat([states, units[i].expand(7, 2)], 1) for i, states in enumerate((x, hidden))]
    )
    odds = 2.0**2 * rows.mT @ rows / 14
    expected = odds @ torch.linalg.inv(odds + torch.eye(11))
    torch.testing.assert_close(claimed.matrix()[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("bias", [False, True])
def test_embeddings_tied_to_the_output(bias: bool, name: str) -> None:
    """The same numbers are rows of one block and groups of another: both are protected."""
    torch.manual_seed(0)
    old, new = torch.tensor([[0, 2, 4]]), torch.tensor([[1, 2, 3], [5, 7, 9]])
    model = Language(bias)
    shield = check(model, old, new, lambda m: OPTIMIZERS[name](m.parameters()))
    assert list(shield.quota()) == ["tokens", "mix", "out"]


# --- split blocks ------------------------------------------------------------------------


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 12), nn.Tanh(), nn.Linear(12, 3))


def halves(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    weights = [p for n, p in model.named_parameters() if n.endswith("weight")]
    return weights, [p for n, p in model.named_parameters() if n.endswith("bias")]


def groups_with_decay(model: nn.Module) -> Optimizer:
    weights, biases = halves(model)
    return optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0}], lr=0.02
    )


def two_optimizers(model: nn.Module) -> list[Optimizer]:
    weights, biases = halves(model)
    return [optim.SGD(weights, lr=0.1, momentum=0.5), optim.Adam(biases, lr=0.02)]


def one_after_another(model: nn.Module) -> list[Optimizer]:
    return [optim.SGD(model.parameters(), lr=0.05), optim.Adam(model.parameters(), lr=0.01)]


@pytest.mark.parametrize("make", [groups_with_decay, two_optimizers, one_after_another])
def test_blocks_may_be_split_over_groups_and_optimizers(make: Callable[..., Any]) -> None:
    check(two_layers(), Draw(0, batch=4).x(9), Draw(1, batch=6).x(9), make)
