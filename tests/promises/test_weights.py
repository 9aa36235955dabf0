"""Whatever steps or moves the weights: it is protected, refused or reported."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from conceptors import Shield, UnprotectedWarning
from helpers import in_silence
from promises.common import HARD, Signs, data, drift, network, outputs, shielded, train

Move = Callable[[Any], None]

either = pytest.mark.parametrize("options", [{}, HARD], ids=["soft", "hard"])


def in_place(model: Any) -> None:
    with torch.no_grad():
        model[0].weight.mul_(1.5)


def replaced(model: Any) -> None:
    model[0].weight = nn.Parameter(torch.randn(64, 12).double())


def loaded(model: Any) -> None:
    model.load_state_dict({n: torch.randn_like(v) for n, v in model.state_dict().items()})


@either
@pytest.mark.parametrize("then", ["remember", "step"])
@pytest.mark.parametrize("move", [in_place, replaced, loaded])
def test_what_has_moved_is_reported(move: Move, then: str, options: dict[str, Any]) -> None:
    """Also before the first guarded step, as for the checkpoint of another run."""
    model = network()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    shield = Shield(model, **options)
    shield.guard(optimizer)
    shield.remember(data(1))
    before = outputs(model)
    move(model)
    assert drift(model, before) > 0.1
    notice = (
        partial(train, model, optimizer, 1) if then == "step" else partial(shield.remember, data(3))
    )
    with pytest.warns(UnprotectedWarning, match=r"moved in protected directions.*: 0 \(by \d+%\)"):
        notice()
    if then == "remember":
        with in_silence():  # once; the weights of now count from here
            shield.remember(data(4))


@either
def test_an_earlier_state_of_the_same_task_is_fine(options: dict[str, Any]) -> None:
    model = network()
    shield = Shield(model, **options).remember(data(1))
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-3))
    train(model, optimizer, 10)
    best = {name: value.clone() for name, value in model.state_dict().items()}
    train(model, optimizer, 10)
    with in_silence():
        model.load_state_dict(best)
        train(model, optimizer, 2)
        model.load_state_dict(best)
        shield.remember(data(3))
    assert shield.n_tasks == 2


def test_weights_that_were_exchanged_after_a_step_are_reported() -> None:
    """As where moving averages take their place."""
    model = network()
    shield = Shield(model).remember(data(1))
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-3))
    train(model, optimizer, 3)
    model[0].weight.data = torch.randn(64, 12).double()
    with pytest.warns(UnprotectedWarning, match=r"moved in protected directions.*: 0 \(by \d+%\)"):
        shield.remember(data(3))


def test_a_head_that_grew_is_no_replacement() -> None:
    model = network()
    shield = shielded(model)
    head = nn.Linear(64, 5).double()
    with torch.no_grad():
        head.weight[:3], head.bias[:3] = model[2].weight, model[2].bias
    model[2] = head
    with in_silence():
        optimizer = shield.guard(AdamW(model.parameters(), lr=1e-3))
        train(model, optimizer, 3)
        shield.remember(data(3))
    model[2] = nn.Linear(64, 5).double()
    with pytest.warns(UnprotectedWarning, match=r"2 \(by "):
        shield.refresh()


class ScheduleFree(SGD):
    """Trains between two sequences of weights, and evaluates one of them."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


def test_an_optimizer_that_evaluates_other_weights_is_refused_by_name() -> None:
    model = network()
    with pytest.raises(ValueError, match="ScheduleFree evaluates other weights than it trains"):
        shielded(model).guard(ScheduleFree(model.parameters(), lr=0.1))


@either
def test_an_optimizer_without_a_guard_is_reported(options: dict[str, Any]) -> None:
    model, free = network(), network()
    shield = Shield(model, **options)
    with in_silence():  # in a first task nothing is claimed, and other weights may step
        train(model, SGD(model.parameters(), lr=0.1))
        shield.remember(data(1))
        train(free, SGD(free.parameters(), lr=0.1))
    train(model, shield.guard(SGD(model.parameters(), lr=0.1)), 2)
    forgotten = SGD(model.parameters(), lr=0.1)
    with pytest.warns(UnprotectedWarning, match="SGD is not guarded, .*: 0, ") as w:
        train(model, forgotten, 3)
    assert len(w) == 1
    assert w[0].filename.endswith("common.py")  # where step() was called
    shield.detach()
    with in_silence():
        train(model, SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("then", ["step", "remember", "detach", "state_dict"])
def test_a_step_that_was_interrupted_is_corrected_by_what_follows(then: str) -> None:
    model = network()
    shield = shielded(model)
    optimizer: Any = shield.guard(Signs(model.parameters(), {}))
    before = outputs(model)
    train(model, optimizer, 2)
    optimizer.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, 1)
    optimizer.interrupt = False
    assert drift(model, before) > 1e-3
    if then == "step":
        train(model, optimizer, 1)
    else:
        getattr(shield, then)(*([data(3)] if then == "remember" else []))
    assert drift(model, before) < 1e-10


def test_a_step_to_nan_and_a_restore_recover() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(SGD(model.parameters(), lr=0.1))
    before = outputs(model)
    good = {name: value.clone() for name, value in model.state_dict().items()}
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step()
    assert not bool(outputs(model).isfinite().all())
    model.load_state_dict(good)
    train(model, optimizer, 5)
    assert drift(model, before) < 1e-10


def test_what_was_frozen_when_a_task_was_remembered_is_reported_when_it_learns() -> None:
    model = network()
    model[0].requires_grad_(False)
    shield = shielded(model)
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-2))
    with in_silence():
        train(model, optimizer, 3)
        state = shield.state_dict()
    model[0].requires_grad_(True)
    with pytest.warns(UnprotectedWarning, match=r"frozen when a task .* was remembered.*: 0\. "):
        train(model, optimizer, 1)
    with in_silence():  # once
        train(model, optimizer, 3)
        shield.remember(data(3))
    other = network()
    other[0].requires_grad_(False)
    resumed = Shield(other, **HARD)
    resumed.load_state_dict(state)
    other[0].requires_grad_(True)
    with pytest.warns(UnprotectedWarning, match=r"frozen when a task"):
        resumed.refresh()
