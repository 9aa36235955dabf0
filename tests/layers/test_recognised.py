"""Layers are known by what they do, and left alone where that is something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import Shield
from conceptors.layers import Draws, Sample, find_rule
from conceptors.layers.base import Call
from layers.recognised import Norm

Formula = Callable[[Tensor, Tensor], Tensor]


class Vector(nn.Module):
    """A formula of the input and a vector."""

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x, self.weight)


class Matrix(nn.Module):
    """A formula of the input and a matrix."""

    def __init__(self, formula: Formula) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x, self.weight)


NO_SCALES: dict[str, Formula] = {
    "not linear in the weight": lambda x, w: w.exp() * x,
    "rows that meet": lambda x, w: w * x / x.std(),
    "no use": lambda x, w: x,
}
NO_PRODUCTS: dict[str, Formula] = {
    "the input is another": lambda x, w: functional.linear(x.relu(), w),
    "part of the input": lambda x, w: functional.linear(x[..., :1, :], w),
    "the weight is another": lambda x, w: functional.linear(x, w.exp()),
    "two products": lambda x, w: functional.linear(functional.linear(x, w), w),
    "used beside": lambda x, w: functional.linear(x, w) * w.norm(),
    "no use": lambda x, w: x,
}


@pytest.mark.parametrize("why", NO_SCALES)
def test_what_only_looks_like_a_scale_keeps_old_outputs_all_the_same(why: str) -> None:
    """It has no rule: then it is a parameter beside layers, seen where it is used, or held."""
    torch.manual_seed(0)
    assert find_rule(Vector(NO_SCALES[why])) is None
    first = nn.Linear(8, 8)
    model = nn.Sequential(first, Vector(NO_SCALES[why])).double()
    old, new = torch.randn(3, 8).double(), torch.randn(9, 8).double()
    shield = Shield(model, 1e4, hard=True)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
    shield.remember(old)
    before, start = model(old).detach(), first.weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        model(new).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(model(old).detach(), before, rtol=1e-9, atol=1e-9)
    assert float((first.weight - start).detach().norm()) > 0.01  # it does learn


@pytest.mark.parametrize("why", NO_PRODUCTS)
def test_what_only_looks_like_a_product_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match=r"0\.weight \(Matrix, shape \[8, 8\]\)"):
        Shield(nn.Sequential(Matrix(NO_PRODUCTS[why]), nn.Linear(8, 2)))


def test_what_changes_with_the_input_is_noticed() -> None:
    class Moody(Norm):
        def forward(self, hidden: Tensor, gate: Tensor | None = None) -> Tensor:
            found = super().forward(hidden, gate)
            return found + self.weight if len(hidden) == 4 else found

    layer, x = Moody(8), torch.randn(4, 8)
    rule = find_rule(layer)
    assert rule is not None
    sample = Sample(lambda *_: None, Draws(0))
    assert list(rule.rows(layer, Call((x[:3],), {}, layer(x[:3])), sample))
    with pytest.raises(ValueError, match=r"does something else with this input of shape \[4, 8\]"):
        list(rule.rows(layer, Call((x,), {}, layer(x)), sample))
