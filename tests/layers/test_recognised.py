"""Layers are known by what they do, and left alone where that is something else."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors import Shield
from conceptors.layers import Draws, Sample, find_rule
from conceptors.layers.base import Call
from helpers import drift
from layers.recognised import Formula, Norm
from shield.common import train

NO_SCALES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "not linear in the weight": lambda x, w: w.exp() * x,
    "rows that meet": lambda x, w: w * x / x.std(),
    "no use": lambda x, w: x,
}
NO_PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
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
    assert find_rule(Formula(NO_SCALES[why], 8)) is None
    first = nn.Linear(8, 8)
    model = nn.Sequential(first, Formula(NO_SCALES[why], 8)).double()
    old, new = torch.randn(3, 8).double(), torch.randn(9, 8).double()
    shield = Shield(model, 1e4, hard=True)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
    shield.remember(old)
    before, start = model(old).detach(), first.weight.detach().clone()
    train(model, optimizer, new, 5)
    assert drift(model(old), before) < 1e-9
    assert float((first.weight - start).detach().norm()) > 0.01  # it does learn


@pytest.mark.parametrize("why", NO_PRODUCTS)
def test_what_only_looks_like_a_product_is_refused(why: str) -> None:
    with pytest.raises(ValueError, match=r"0\.kernel \(Formula, shape \[8, 8\]\)"):
        Shield(nn.Sequential(Formula(NO_PRODUCTS[why], 8, 8), nn.Linear(8, 2)))


def test_what_changes_with_the_input_is_noticed() -> None:
    class Moody(Norm):
        def forward(self, hidden: Tensor, gate: Tensor | None = None) -> Tensor:
            result = super().forward(hidden, gate)
            return result + self.weight if len(hidden) == 4 else result

    layer, x = Moody(8), torch.randn(4, 8)
    rule = find_rule(layer)
    assert rule is not None
    sample = Sample(lambda *_: None, Draws(0))
    assert list(rule.rows(layer, Call((x[:3],), {}, layer(x[:3])), sample))
    with pytest.raises(ValueError, match=r"does something else with this input of shape \[4, 8\]"):
        list(rule.rows(layer, Call((x,), {}, layer(x)), sample))
