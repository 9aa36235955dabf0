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


def test_tokens_are_kept_when_a_task_resumes_in_its_middle() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 16), nn.Tanh(), nn.Linear(16, 2)).double()
    old, new = torch.tensor([[1], [2]]), torch.tensor([[3], [4]])
    shield = Shield(model, **HARD).remember(old)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train_on_new() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            model(new).square().mean().backward()
            optimizer.step()

    shield.guard(optimizer)
    train_on_new()
    before, state = model(old).detach(), shield.state_dict()
    shield.detach()
    resumed = Shield(model, **HARD)
    resumed.load_state_dict(state)
    resumed.guard(optimizer)
    train_on_new()
    torch.testing.assert_close(model(old), before, rtol=0, atol=1e-12)


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


def test_what_is_frozen_does_not_move_along_the_history_of_lbfgs() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))
    x = data(2, rank=12)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return float(loss.detach())

    before = outputs(model)
    optimizer.step(closure)
    state = shield.state_dict()
    shield.load_state_dict(state)  # where a task resumes, the history is kept
    model[0].requires_grad_(False)
    start = model[0].weight.detach().clone()  # type: ignore[operator]
    for _ in range(2):  # without gradients from the second on
        optimizer.step(closure)
    assert torch.equal(model[0].weight, start)  # type: ignore[arg-type]
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


def test_a_frozen_layer_that_no_task_has_used_is_nothing_to_tell() -> None:
    model = Heads()
    model.heads[1].requires_grad_(False)
    shield = Shield(model, **HARD).remember(data(1))
    model.heads[1].requires_grad_(True)
    with in_silence():
        shield.refresh()
        shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))


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
    with pytest.raises(ValueError, match=r"not in the state \(they start empty\): heads.1, heads"):
        Shield(Heads(), **HARD).load_state_dict(smaller)


def test_a_state_is_not_saved_in_silence_after_weights_have_moved() -> None:
    model = network()
    shield = shielded(model)
    with torch.no_grad():
        model[2].weight.mul_(1.5)  # type: ignore[operator]
    with pytest.warns(UnprotectedWarning, match=r"moved within claimed space.*: 2 \(by"):
        shield.state_dict()
    shield.detach()
    with torch.no_grad(), in_silence():
        model[0].weight.mul_(1.5)  # type: ignore[operator]
        assert shield.state_dict()["n_tasks"] == 1


def test_a_state_keeps_what_it_says_of_layers_that_are_frozen_now() -> None:
    state = shielded(network()).state_dict()
    model = network()
    model[0].requires_grad_(False)
    shield = Shield(model, **HARD)
    assert shield.load_state_dict(state).fits
    before = outputs(model)
    model[0].requires_grad_(True)
    with in_silence():
        train(model, shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2)), 3)
    assert drift(model, before) < 1e-10


# --- the rest ----------------------------------------------------------------------------


@pytest.mark.parametrize("optimizers", [1, 2])
def test_increments_decay_within_free_space_where_a_layer_is_stepped_in_parts(
    optimizers: int,
) -> None:
    model = network()
    shield = shielded(model, increment_decay=0.5)
    weights = [p for p in model.parameters() if p.ndim == 2]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": weights, "lr": 0.02}, {"params": biases, "lr": 0.005}]
    made = [torch.optim.AdamW(groups)] if optimizers == 1 else []
    made = made or [torch.optim.AdamW([group]) for group in groups]
    for optimizer in made:
        shield.guard(optimizer)
    before = outputs(model)
    for _ in range(5):
        model.zero_grad()
        (model(data(2, rank=12)) - 1).square().mean().backward()
        for optimizer in made:
            optimizer.step()
    assert drift(model, before) < 1e-10


def test_what_was_forgotten_may_change_without_a_word() -> None:
    model = network()
    shield = shielded(model, keep_tasks=True).forget(0)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    before = outputs(model)
    with in_silence():
        train(model, optimizer, 5)
        shield.remember(data(3))
    assert drift(model, before) > 1e-3


def test_a_weight_that_only_lends_its_dtype_is_not_used() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            shift = self.layer.weight.new_ones(12) + torch.zeros_like(self.layer.weight)[0]
            found: Tensor = self.layer(x + shift)
            return found

    assert Shield(Shifted(), **HARD).remember(data(1)).n_tasks == 1


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


def test_a_small_edit_of_exact_weights_is_told() -> None:
    model = network()
    shield = shielded(model)
    with torch.no_grad():
        model[0].weight.mul_(1 + 1e-6)  # type: ignore[operator]
    with pytest.warns(UnprotectedWarning, match=r"moved within claimed space.*: 0 \(by 1e-06\)"):
        shield.remember(data(3))
