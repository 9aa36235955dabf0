"""Saving a shield and going on: on the same model, on a grown one or another."""

import contextlib
import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, AdamW

from conceptors import Shield, UnprotectedWarning
from shield.common import samples, train

data = partial(samples, count=30, inputs=8)


def network() -> Any:
    torch.manual_seed(0)
    first, last = nn.Linear(8, 20), nn.Linear(20, 3)
    return nn.Sequential(first, nn.BatchNorm1d(20), nn.Tanh(), nn.Dropout(0.2), last).double()


OPTIONS: dict[str, dict[str, Any]] = {
    "soft": {},
    "hard": {"hard": True, "aperture": 100.0},
    "decay": {"increment_decay": 0.01, "keep_tasks": True},
    "sketch": {"rank": 4},
    "auto": {"aperture": "auto", "keep_tasks": True},
    "bfloat16": {"aperture": "auto"},
}
OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.05, momentum=0.9),
    "adamw": partial(AdamW, lr=0.01),
    "lbfgs": partial(LBFGS, lr=0.1, max_iter=2),
}


def go_on(model: nn.Module, optimizer: Any, x: Tensor, steps: int = 4) -> None:
    """Train with a rate that falls: the pull of SGD depends on it."""

    def closure() -> float:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return float(loss.detach())

    for _ in range(steps):
        optimizer.param_groups[0]["lr"] *= 0.99
        optimizer.step(closure)


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("by_file", [False, True], ids=["memory", "file"])
def test_a_checkpoint_taken_mid_task_resumes_bit_equal(
    kind: str, name: str, by_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guarded before or after everything is loaded; also rounding of half-precision weights."""
    if kind == "sketch":
        monkeypatch.setattr("conceptors.shield.options._DENSE", 5)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float64

    def begin() -> tuple[Any, Shield, Any]:
        model = network().to(dtype)
        shield = Shield(model, **{"aperture": 5.0, **OPTIONS[kind]})
        return model, shield, OPTIMIZERS[name](model.parameters())

    model, shield, optimizer = begin()
    shield.guard(optimizer)
    tasks = [data(task).to(dtype) for task in (1, 2, 3)]
    for x in tasks[:2]:
        go_on(model, optimizer, x)
        shield.remember(x)
    go_on(model, optimizer, tasks[2])  # in the middle of the third task
    weights, moments, state = (copy.deepcopy(o.state_dict()) for o in (model, optimizer, shield))
    random, path = torch.get_rng_state(), tmp_path / "shield.safetensors"
    if by_file:
        shield.save(path)
    go_on(model, optimizer, tasks[2])

    twin, resumed, other = begin()
    if not by_file:
        resumed.guard(other)
    twin.load_state_dict(weights)
    other.load_state_dict(moments)
    resumed.load(path) if by_file else resumed.load_state_dict(state)
    if by_file:
        resumed.guard(other)
    torch.set_rng_state(random)
    go_on(twin, other, tasks[2])
    for key, value in model.state_dict().items():
        assert torch.equal(twin.state_dict()[key], value), key
    assert resumed.quota() == shield.quota()
    if "keep_tasks" in OPTIONS[kind]:
        assert resumed.forget(0).quota() == shield.forget(0).quota()
        ours, theirs = (s.state_dict()["tensors"] for s in (resumed, shield))
        assert all(torch.equal(ours[key], value) for key, value in theirs.items())
        assert len(ours) == len(theirs)
        stiff = [key for key in ours if key.endswith("/stiffness")]
        assert len(stiff) == (6 if kind == "auto" else 0)
    if name == "lbfgs":  # its history ends with a task, but not where it was loaded with the tasks
        shield.remember(tasks[2])
        assert not optimizer.state


def test_models_with_more_layers_or_others() -> None:
    state = Shield(network()).remember(data(1)).state_dict()
    grown = nn.Sequential(*network(), nn.Linear(3, 2).double())
    shield = Shield(grown).load_state_dict(state)
    assert shield.n_tasks == 1
    assert [quota > 0 for quota in shield.quota().values()] == [True, True, True, False]
    other = network()
    other[4] = nn.Linear(21, 3).double()
    shield = Shield(other)
    with pytest.raises(ValueError, match=r"does not fit(.|\n)*4 has 22 inputs now"):
        shield.load_state_dict(state)
    assert shield.n_tasks == 0
    with pytest.raises(ValueError, match=r"does not fit(.|\n)*0 is not in the model"):
        Shield(nn.ModuleDict({"first": nn.Linear(8, 20)})).load_state_dict(state, strict=False)
    assert shield.load_state_dict(state, strict=False).n_tasks == 1
    assert [quota > 0 for quota in shield.quota().values()] == [True, True, False]


@pytest.mark.parametrize("then", ["step", "remember"])
def test_a_shield_beside_a_model_that_was_not_loaded_is_reported(then: str) -> None:
    model = network()
    shield = Shield(model).remember(data(1))
    train(model, shield.guard(SGD(model.parameters(), 0.05)), data(2), 3)
    other: Any = nn.Sequential(*(copy.deepcopy(layer) for layer in model))
    for warned in (True, False):
        if warned:
            other[4] = nn.Linear(20, 3).double()  # new weights
        resumed = Shield(other)
        optimizer = resumed.guard(SGD(other.parameters(), 0.05))
        resumed.load_state_dict(shield.state_dict())
        if not warned:
            other.load_state_dict(model.state_dict())  # may still be loaded until the next step
        expected: Any = contextlib.nullcontext()
        if warned:
            expected = pytest.warns(UnprotectedWarning, match="other weights than when .*: 4. ")
        with expected:
            if then == "step":
                train(other, optimizer, data(2), 1)
            else:
                resumed.remember(data(2))
        resumed.detach()


def test_other_states_are_no_state_of_a_shield(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "model.pt"
    torch.save(model.state_dict(), path)
    shield = Shield(model)
    with pytest.raises(ValueError, match=r"state of a model, for model\.load_state_dict"):
        shield.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"written by torch\.save.*model\.load_state_dict"):
        shield.load(path)
    shield.remember(data(1)).conceptors()["0"].save(path)
    with pytest.raises(ValueError, match=r"not the state of a Shield|not a shield file"):
        shield.load(path)
