"""Histories in which something was lost, or said in vain, once: found by drawn scenarios."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from promises.common import data, drift, network, outputs, shielded, train

HARD: dict[str, Any] = {"aperture": 1e6, "hard": True}


@contextmanager
def in_silence() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# --- what does not learn -----------------------------------------------------------------


def test_what_is_frozen_does_not_move_by_weight_decay_or_momentum() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5))
    before = outputs(model)
    train(model, optimizer, 2)
    model[0].requires_grad_(False)
    for _ in range(3):  # its gradients stay, as zeros
        optimizer.zero_grad(set_to_none=False)
        (model(data(2, rank=12)) - 1).square().mean().backward()
        optimizer.step()
    assert drift(model, before) < 1e-10


def test_what_learns_again_is_protected_from_its_first_step() -> None:
    model = network()
    shield = shielded(model)
    model[0].requires_grad_(False)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    before, start = outputs(model), model[0].weight.detach().clone()  # type: ignore[operator]
    train(model, optimizer, 4)
    assert torch.equal(model[0].weight, start)  # type: ignore[arg-type]
    model[0].requires_grad_(True)
    train(model, optimizer, 1)
    assert not torch.equal(model[0].weight, start)  # type: ignore[arg-type]
    assert drift(model, before) < 1e-10


def test_what_was_frozen_when_a_task_was_remembered_is_told_when_it_learns() -> None:
    model = network()
    model[0].requires_grad_(False)
    shield = shielded(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    with in_silence():
        train(model, optimizer, 3)
        state = shield.state_dict()
    model[0].requires_grad_(True)
    with pytest.warns(UnprotectedWarning, match=r"frozen when a task .* was remembered.*: 0\. "):
        train(model, optimizer, 1)
    with in_silence():  # once
        train(model, optimizer, 3)
        shield.remember(data(3))
    shield.detach()
    other = network()
    other[0].requires_grad_(False)
    second = Shield(other, **HARD)
    second.load_state_dict(state)
    other[0].requires_grad_(True)
    with pytest.warns(UnprotectedWarning, match=r"frozen when a task"):
        second.refresh()


class Heads(nn.Module):
    """One for each task."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(12, 32)
        self.heads = nn.ModuleList(nn.Linear(32, 2) for _ in range(count))
        self.double()

    def forward(self, x: Tensor, task: int = 0) -> Tensor:
        found: Tensor = self.heads[task](self.body(x).tanh())
        return found


# --- states ------------------------------------------------------------------------------


def test_a_state_fits_the_model_it_is_of_also_before_all_heads_are_used() -> None:
    for tasks in range(2):
        shield = Shield(Heads(), **HARD)
        for _ in range(tasks):
            shield.remember(data(1))
        other = Heads()
        report = Shield(other, **HARD).load_state_dict(shield.state_dict())
        assert report.fits
        assert report.loaded == ["body", "heads.0"][: 2 * tasks]
    smaller = Shield(Heads(1), **HARD).remember(data(1)).state_dict()
    with pytest.raises(ValueError, match=r"in the model but not in the state: heads.1, heads"):
        Shield(Heads(), **HARD).load_state_dict(smaller)


@pytest.mark.parametrize("angle", [1e-3, 1e-4, 1e-5, 1e-6])
def test_tasks_that_use_nearly_the_same_direction_are_both_held_to_rounding(angle: float) -> None:
    torch.manual_seed(0)
    basis = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64)).Q.mT
    first = 5 * basis[:4]
    second = 5 * torch.stack([basis[3] + angle * basis[4], basis[6]])
    model = nn.Linear(12, 3, bias=False).double()
    shield = Shield(model, **HARD).remember(first).remember(second)
    (values,) = shield.spectra().values()
    assert values.tolist() == [1.0] * 6 + [0.0] * 6
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
    before = [model(x).detach() for x in (first, second)]
    train(model, optimizer, 5)
    for x, y in zip((first, second), before):
        torch.testing.assert_close(model(x), y, rtol=0, atol=1e-12)
