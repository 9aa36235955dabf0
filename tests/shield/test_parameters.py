"""Which parameters are shielded: known and unknown layers, some by name, new ones, frozen ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield
from conceptors.layers import Block, Call, Rows, RowsByBlock, Sample, register
from shield.common import Unknown, mlp, quiet, samples, train


def with_scale(kind: type[nn.Module] = Unknown) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 24), kind(24), nn.Linear(24, 3)).double()


def test_unsupported_parameters_are_listed_and_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.factor \(Unknown, shape \[2, 24\]\)(.|\n)*freeze"):
        Shield(with_scale())


def test_unsupported_parameters_can_be_frozen_or_ignored() -> None:
    for choice, moves in {"freeze": False, "ignore": True}.items():
        model = with_scale()
        shield = quiet(model, unsupported=choice)
        optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
        train(model, optimizer, samples(), steps=2)
        first = model[1].factor.detach().clone()
        assert not torch.equal(first, torch.ones(2, 24).double())  # the first task is free
        shield.remember(samples())
        train(model, optimizer, samples(4), steps=2)
        assert torch.equal(first, model[1].factor.detach()) != moves


def test_layers_can_be_excluded_or_frozen_by_name() -> None:
    model = mlp()
    shield = quiet(model, 1e4, hard=True, exclude=["2"], freeze="0.bias")
    assert list(shield.quota()) == ["0"]
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    shield.remember(samples())
    hidden, head = model[0](samples()).detach(), model[2].weight.detach().clone()
    frozen = model[0].bias.detach().clone()
    train(model, optimizer, samples(2), steps=5)
    assert torch.equal(model[0].bias, frozen)
    assert not torch.equal(model[2].weight, head)
    assert not torch.equal(model[0].weight, mlp()[0].weight)
    torch.testing.assert_close(model[0](samples()).detach(), hidden, rtol=1e-10, atol=1e-10)
    shield.detach()
    with pytest.raises(TypeError, match="exclude takes name patterns"):
        Shield(model, exclude=[3])  # type: ignore[list-item]


def test_models_without_anything_to_shield_are_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        Shield(nn.Sequential(nn.ReLU()))
    frozen = mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="is everything frozen"):
        Shield(frozen)


def test_heads_added_between_tasks_are_found() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(10, 24)
            self.heads = nn.ModuleList([nn.Linear(24, 2)])

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.heads[-1](self.body(x).tanh())
            return out

    torch.manual_seed(0)
    model = Heads().double()
    shield = quiet(model, 1e4, hard=True)
    train(model, shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01)), samples(), steps=3)
    shield.remember(samples())
    old = model(samples()).detach()
    model.heads.append(nn.Linear(24, 2).double())
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    assert shield.quota()["heads.1"] == 0.0
    train(model, optimizer, samples(2), steps=5)
    shield.remember(samples(2))
    assert set(shield.quota()) == {"body", "heads.0", "heads.1"}
    assert shield.quota()["heads.1"] > 0
    del model.heads[1]
    torch.testing.assert_close(model(samples()).detach(), old, rtol=1e-9, atol=1e-9)


def test_partly_frozen_layers_are_protected_by_what_moves() -> None:
    for frozen in ("weight", "bias"):
        for hard in (True, False):
            model: Any = nn.Sequential(nn.Linear(10, 4)).double()
            getattr(model[0], frozen).requires_grad_(False)
            shield = quiet(model, 1e3, hard=hard)
            optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=1e-3))
            shield.remember(samples())
            old = model(samples()).detach()
            held = getattr(model[0], frozen).detach().clone()
            train(model, optimizer, samples(2, rank=10), steps=5)
            assert torch.equal(held, getattr(model[0], frozen))
            tolerance = 1e-9 if hard else 1e-2
            torch.testing.assert_close(model(samples()).detach(), old, rtol=0, atol=tolerance)


def test_a_rule_of_ones_own_takes_ten_lines() -> None:
    class KnownScale(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(size).double())

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    @register(KnownScale)
    class ScaleRule:
        def blocks(self, layer: Any) -> list[Block]:
            return [
                Block(
                    "factor",
                    None,
                    view=lambda f: f[:, None, None],
                    layout="scale",
                    rows_first=False,
                )
            ]

        def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
            rows, weight = sample(call.args[0])
            yield "", Rows(rows[0].mT[..., None], weight)

    model = with_scale(KnownScale)
    shield = quiet(model, 1e4, hard=True)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    shield.remember(samples())
    old = model(samples()).detach()
    train(model, optimizer, samples(2))
    torch.testing.assert_close(model(samples()).detach(), old, rtol=1e-9, atol=1e-9)
