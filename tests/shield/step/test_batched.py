"""Equal layers together do what they do one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from conceptors import Conceptor
from conceptors.shield.step.batched import together
from conceptors.shield.step.elementwise import make_small
from conceptors.shield.step.factored import make_factored
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.memory import both
from conceptors.shield.step.strategy import Strategy, Way
from shield.step.common import gradient_of, sites


def strategies(model: nn.Module, claims: list[Conceptor], stiff: bool) -> list[Strategy]:
    """One for each layer, with gradients as `.grad` has them."""
    scale = torch.ones(()).double()
    found: list[Strategy] = []
    for site, claimed in zip(sites(model).values(), claims):
        stiffness = torch.linspace(1, 2, len(claimed.matrix())).double() if stiff else None
        free = FreeSpace(claimed, torch.float64, stiffness=stiffness)
        weights, gradients = both(site, site.active(), gradient_of)
        make = make_factored if free.dim > 2 else make_small
        anchor = site.matrix(site.active()).clone()[..., torch.cat(weights.columns)]
        found.append(make(free, weights, gradients, anchor, scale, Way(None)))
    return found


@pytest.mark.parametrize("stiff", [False, True], ids=["free", "pulled"])
@pytest.mark.parametrize("bias", [True, False])
def test_stacks_do_what_their_members_do(bias: bool, stiff: bool) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(9, 7, bias=bias).double() for _ in range(3)]
    one_by_one = nn.ModuleList([*layers, *(nn.LayerNorm(7).double() for _ in range(3))])
    claims = []
    for number in range(3):
        rows = torch.randn(20, 3).double() @ torch.randn(3, 9 + bias).double()
        claims.append(Conceptor.from_states(rows[None], 2.0 + number))
    claims += [
        Conceptor.from_states(torch.randn(7, 5, 2).double(), 0.5 + number) for number in range(3)
    ]
    stacked = copy.deepcopy(one_by_one)
    for model in (one_by_one, stacked):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        members = strategies(model, claims, stiff)
        pieces = members if model is one_by_one else together(members)
        assert len(pieces) == (6 if model is one_by_one else 2)
        for piece in pieces:
            piece.note()
        generator = torch.Generator().manual_seed(1)
        for _ in range(3):
            for parameter in model.parameters():
                gradient_of(parameter).normal_(generator=generator)
            for piece in pieces:
                piece.project()
            for parameter in model.parameters():
                parameter.data.sub_(gradient_of(parameter).tanh(), alpha=0.1)
            for piece in pieces:
                piece.correct()
    for one, other in zip(one_by_one.parameters(), stacked.parameters()):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_members_of_a_stack_know_its_notes() -> None:
    """A checkpoint asks the members, layer by layer."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(6, 5, bias=False).double() for _ in range(2)])
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    claims = [Conceptor.from_states(torch.randn(1, 3, 6).double(), 2.0) for _ in range(2)]
    members = strategies(model, claims, False)
    (stack,) = together(members)
    stack.note()
    for member, layer, claimed in zip(members, model, claims):
        along = layer.weight.detach() @ claimed.spectrum[0][0]  # type: ignore[operator]
        torch.testing.assert_close(member.noted.abs().sum(), along.abs().sum())
