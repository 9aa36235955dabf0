"""Weights that move beside guarded steps are noticed, whatever moved them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from conceptors import Shield, UnprotectedWarning
from promises.common import data, drift, network, outputs, shielded, train

Move = Callable[[nn.Sequential], None]


def in_place(model: nn.Sequential) -> None:
    with torch.no_grad():
        model[0].weight.mul_(1.5)  # type: ignore[operator]


def replaced(model: nn.Sequential) -> None:
    model[0].weight = nn.Parameter(torch.randn(64, 12).double())


def loaded(model: nn.Sequential) -> None:
    torch.manual_seed(9)
    model.load_state_dict(
        nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 3)).state_dict()
    )


MOVES = [in_place, replaced, loaded]


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("move", MOVES)
def test_what_moved_is_told_by_remember(move: Move, soft: bool) -> None:
    model = network()
    shield = Shield(model).remember(data(1)) if soft else shielded(model)
    before = outputs(model)
    move(model)
    assert drift(model, before) > 0.1
    with pytest.warns(UnprotectedWarning, match=r"moved in protected directions.*: 0 \(by \d+%\)"):
        shield.remember(data(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once; the weights of now count from here
        shield.remember(data(4))


@pytest.mark.filterwarnings("ignore:AdamW steps 1 of 4 parameters")  # told, too
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("move", MOVES)
def test_what_moved_after_a_task_is_told_at_the_first_step(move: Move, soft: bool) -> None:
    """A checkpoint of another run, before anything else is asked of the shield."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shield = Shield(model) if soft else Shield(model, 1e4, hard=True)
    shield.guard(optimizer)
    train(model, optimizer, 3)
    shield.remember(data(1))
    move(model)
    with pytest.warns(UnprotectedWarning, match="moved in protected directions"):
        train(model, optimizer, 1)


@pytest.mark.parametrize("soft", [False, True])
def test_an_earlier_state_of_the_same_task_is_fine(soft: bool) -> None:
    model = network()
    shield = Shield(model).remember(data(1)) if soft else shielded(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-3))
    train(model, optimizer, 10)
    best = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, optimizer, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.load_state_dict(best)
        train(model, optimizer, 2)
        model.load_state_dict(best)
        shield.remember(data(3))
    assert shield.n_tasks == 2


def test_a_head_that_grew_is_no_replacement() -> None:
    model = network()
    shield = shielded(model)
    head = nn.Linear(64, 5).double()
    with torch.no_grad():
        head.weight[:3], head.bias[:3] = model[2].weight, model[2].bias  # type: ignore[assignment]
    model[2] = head
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-3))
        train(model, optimizer, 3)
        shield.remember(data(3))
    model[2] = nn.Linear(64, 5).double()
    with pytest.warns(UnprotectedWarning, match=r"2 \(by "):
        shield.refresh()


def test_a_checkpoint_may_be_loaded_in_any_order() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-3))
    train(model, optimizer, 3)
    weights, state = model.state_dict(), shield.state_dict()
    torch.manual_seed(5)
    other = network()
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    second = Shield(other, 1e6, hard=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second.load_state_dict(state)
        other.load_state_dict(weights)
        before = outputs(other)
        train(other, second.guard(torch.optim.SGD(other.parameters(), lr=0.1)), 3)
        second.remember(data(3))
    assert drift(other, before) < 1e-10
