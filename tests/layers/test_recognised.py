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
from layers.recognised import Experts, Kernel, Norm, Router, Transposed

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
    "rows that are summed": lambda x, w: w * x.cumsum(-2),
    "channels that are mixed": lambda x, w: x * w.flip(0),
    "no use": lambda x, w: x,
    "another shape": lambda x, w: (x * w).sum(-1),
}
NO_PRODUCTS: dict[str, Formula] = {
    "the input is another": lambda x, w: functional.linear(x.relu(), w),
    "the input is turned": lambda x, w: functional.linear(x.mT.contiguous().mT.flip(-1), w),
    "part of the input": lambda x, w: functional.linear(x[..., :1, :], w),
    "the weight is another": lambda x, w: functional.linear(x, w.exp()),
    "two products": lambda x, w: functional.linear(functional.linear(x, w), w),
    "used beside": lambda x, w: functional.linear(x, w) * w.norm(),
    "a product of the weight": lambda x, w: (w @ x.mT).mT,
    "elementwise": lambda x, w: x * w[0],
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


@pytest.mark.parametrize("formula", [lambda x, w: x + w, lambda x, w: x * w + w])
def test_a_shift_is_a_scale_of_ones(formula: Formula) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Vector(formula), nn.Linear(8, 2)).double()
    old, new = torch.randn(3, 8).double(), torch.randn(9, 8).double()
    shield = Shield(model, 1e4, hard=True)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
    shield.remember(old)
    before = model(old).detach()
    for _ in range(5):
        optimizer.zero_grad()
        model(new).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(model(old).detach(), before, rtol=1e-9, atol=1e-9)


def test_a_bias_is_only_added() -> None:
    class Odd(Transposed):
        def forward(self, x: Tensor) -> Tensor:
            return torch.matmul(x, self.weight) * self.bias

    assert find_rule(Transposed(4, 3)) is not None
    assert find_rule(Odd(4, 3)) is None


def test_experts_need_their_three_arguments() -> None:
    class Odd(Experts):
        def forward(self, hidden: Tensor) -> Tensor:  # type: ignore[override]
            return hidden

    assert find_rule(Experts(4, 3, 2)) is not None
    assert find_rule(Odd(4, 3, 2)) is None


LAYERS = [Norm(8), Transposed(8, 8), Kernel(8, 3), Router(8, 3)]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_it_does_not_matter_where_they_are_looked_at(layer: nn.Module) -> None:
    wanted = find_rule(layer)
    assert wanted is not None
    kind = type(layer)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert find_rule(kind(8) if kind is Norm else kind(8, 3)) is wanted
    with torch.device("meta"):
        assert find_rule(kind(8) if kind is Norm else kind(8, 3)) is wanted
    assert find_rule(layer.double()) is wanted
    assert find_rule(layer.bfloat16().train()) is wanted


def test_looking_leaves_no_trace() -> None:
    class Counting(Norm):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__(8)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, hidden: Tensor, gate: Tensor | None = None) -> Tensor:
            self.calls += 1
            return super().forward(hidden, gate)

    layer, called = Counting(), list[int]()
    layer.register_forward_hook(lambda *_: called.append(1))
    state, attributes = torch.get_rng_state(), sorted(vars(layer))
    assert find_rule(layer) is not None
    assert layer.calls == 0
    assert not called
    assert sorted(vars(layer)) == attributes
    assert torch.equal(torch.get_rng_state(), state)


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
