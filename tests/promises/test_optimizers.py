"""Whatever steps the weights: protected, refused or told."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from conceptors import Shield, UnprotectedWarning
from promises.common import Signs, data, drift, network, outputs, shielded, train


class ScheduleFree(torch.optim.SGD):
    """Trains between two sequences of weights, and evaluates one of them."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


def test_an_optimizer_that_evaluates_other_weights_is_refused_by_name() -> None:
    model = network()
    shield = shielded(model)
    with pytest.raises(ValueError, match="ScheduleFree evaluates other weights than it trains"):
        shield.guard(ScheduleFree(model.parameters(), lr=0.1))


@pytest.mark.parametrize("soft", [False, True])
def test_an_optimizer_without_a_guard_is_told_at_its_first_step(soft: bool) -> None:
    model = network()
    shield = Shield(model).remember(data(1)) if soft else shielded(model)
    guarded = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, guarded, 2)
    forgotten = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UnprotectedWarning, match="SGD is not guarded, .*: 0, ") as w:
        train(model, forgotten, 3)
    assert len(w) == 1
    assert w[0].filename.endswith("common.py")  # where step() was called


def test_optimizers_of_other_weights_and_first_tasks_are_nobodys_business() -> None:
    model = network()
    free = nn.Linear(12, 3).double()
    shield = Shield(model, 1e6, hard=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        shield.remember(data(1))
        train(free, torch.optim.SGD(free.parameters(), lr=0.1))
        shield.detach()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert shield.n_tasks == 1


def test_a_step_that_was_interrupted_is_corrected_by_the_next() -> None:
    for then in ("step", "remember", "detach", "state_dict"):
        model = network()
        shield = shielded(model, keep_tasks=True)
        optimizer: Any = shield.guard(Signs(model.parameters(), {}))
        before = outputs(model)
        train(model, optimizer, 2)
        optimizer.interrupt = True
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, 1)
        optimizer.interrupt = False
        assert drift(model, before) > 1e-3
        actions: dict[str, Any] = {
            "step": lambda m=model, o=optimizer: train(m, o, 1),
            "remember": lambda s=shield: s.remember(data(3)),
            "detach": shield.detach,
            "state_dict": shield.state_dict,
        }
        actions[then]()
        assert drift(model, before) < 1e-10, then


def test_a_step_to_nan_and_a_restore_recover() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    before = outputs(model)
    train(model, optimizer, 2)
    good, state = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step()
    assert not bool(outputs(model).isfinite().all())
    model.load_state_dict(good)
    optimizer.load_state_dict(state)
    for values in optimizer.state.values():
        values["momentum_buffer"].zero_()
    train(model, optimizer, 5)
    assert drift(model, before) < 1e-10
