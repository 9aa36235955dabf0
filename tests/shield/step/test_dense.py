"""One product with A does what thin products with its directions do."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conceptors import Conceptor
from conceptors.shield.step import dense
from conceptors.shield.step.choose import choose
from conceptors.shield.step.dense import make_dense
from conceptors.shield.step.factored import make_factored
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.memory import both
from conceptors.shield.step.strategy import Strategy, Way
from helpers import normal
from shield.step.common import gradient_of, sites

_ONCE = Way(None, once=True, corrects=False, stiffest=3.0)


def layer_of(kind: str) -> nn.Module:
    made: dict[str, nn.Module] = {
        "linear": nn.Linear(7, 5),
        "no bias": nn.Linear(8, 5, bias=False),
        "groups": nn.Conv1d(6, 4, 2, groups=2),
        "transposed": nn.ConvTranspose1d(4, 3, 2),
    }
    return made[kind].double()


@pytest.mark.parametrize("room", [0.0, 0.6])
@pytest.mark.parametrize("stiffness", [None, 0.5, 100.0], ids=["free", "pulled", "stiff"])
@pytest.mark.parametrize("kind", ["linear", "no bias", "groups", "transposed"])
@pytest.mark.parametrize("split", [False, True])
def test_dense_equals_factored(
    kind: str, stiffness: float | None, room: float, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in two parts, as on a GPU; with bounds on the pull, a gradient scaler, and room."""
    dtype = torch.float32 if split else torch.float64
    if split:
        monkeypatch.setattr(dense, "pays_to_split", lambda *_: True)
    torch.manual_seed(0)
    layer = layer_of(kind).to(dtype)
    (site,) = sites(layer).values()
    groups, _, width = site.matrix(site.active()).shape
    claimed = Conceptor.from_states(normal(1, groups, 30, width), 3.0)
    anchor_of = site.matrix(site.active()).detach().clone()
    found = []
    for make in (make_dense, make_factored):
        held = None if stiffness is None else torch.full((groups,), stiffness).double()
        free = FreeSpace(claimed, dtype, stiffness=held, room=room)
        for number, parameter in enumerate(layer.parameters()):
            parameter.grad = normal(number + 5, *parameter.shape).to(dtype)
            parameter.data = normal(number + 9, *parameter.shape).to(dtype)
        weights, gradients = both(site, site.active(), gradient_of)
        anchor = anchor_of[..., torch.cat(weights.columns)]
        scale = torch.tensor(8.0, dtype=dtype)
        strategy: Strategy = make(free, weights, gradients, anchor, scale, _ONCE)
        strategy.note()
        share = strategy.passing(once=True)
        strategy.project()
        found.append((site.matrix(site.active(), _grads(site.active())).clone(), share))
    size = 1e-4 if split else 1e-12
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=size)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=size)
    assert float(found[0][0].norm()) > 0.1


def _grads(active: list[nn.Parameter]) -> dict[int, torch.Tensor]:
    return {id(p): gradient_of(p) for p in active}


def test_it_is_taken_where_it_is_less_work() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 5).double()
    (site,) = sites(layer).values()
    wide = FreeSpace(Conceptor.from_states(normal(0, 1, 40, 9), 3.0), torch.float64)
    thin = FreeSpace(
        Conceptor.from_states(normal(0, 1, 40, 3) @ normal(1, 1, 3, 9), 3.0), torch.float64
    )
    plain = torch.optim.SGD(layer.parameters(), lr=0.1)
    adam = torch.optim.AdamW(layer.parameters())
    for free, optimizer, wanted in (
        (wide, plain, make_dense),
        (thin, plain, make_factored),
        (wide, adam, make_factored),
    ):
        groups = optimizer.param_groups * 2  # of weight and bias
        way = choose(site, site.active(), free, optimizer, groups, False)
        assert way.make is wanted


def test_steps_are_never_corrected() -> None:
    layer = nn.Linear(8, 5, bias=False).double()
    (site,) = sites(layer).values()
    layer.weight.grad = torch.zeros_like(layer.weight)
    free = FreeSpace(Conceptor.from_states(normal(0, 1, 40, 8), 3.0), torch.float64)
    made = make_dense(free, *both(site, site.active(), gradient_of), None, torch.ones(()), _ONCE)
    with pytest.raises(RuntimeError, match="left alone"):
        made.correct()
