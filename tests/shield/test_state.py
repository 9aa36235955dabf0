"""Saving a shield and going on: on the same model, on a renamed or grown one."""

from __future__ import annotations

import contextlib
import copy
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

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
}
OPTIMIZERS: list[Any] = [partial(SGD, lr=0.05, momentum=0.9), partial(AdamW, lr=0.01)]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("make", OPTIMIZERS, ids=["sgd", "adamw"])
@pytest.mark.parametrize("by_file", [False, True], ids=["memory", "file"])
def test_a_checkpoint_taken_mid_task_resumes_bit_equal(
    kind: str, make: Any, by_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "sketch":
        monkeypatch.setattr("conceptors.shield.options._DENSE", 5)
    options = {"aperture": 5.0, **OPTIONS[kind]}
    model = network()
    shield = Shield(model, **options)
    optimizer = shield.guard(make(model.parameters()))
    for task in (1, 2):
        train(model, optimizer, data(task), 4)
        shield.remember(data(task))
    train(model, optimizer, data(3), 3)  # in the middle of the third task
    buffer = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), torch.get_rng_state()], buffer)
    state, path = copy.deepcopy(shield.state_dict()), tmp_path / "shield.safetensors"
    if by_file:
        shield.save(path)
    train(model, optimizer, data(3), 4)

    buffer.seek(0)
    weights, moments, random = torch.load(buffer, weights_only=True)
    twin = network()
    twin.load_state_dict(weights)
    resumed = Shield(twin, **options)
    optimizer = resumed.guard(make(twin.parameters()))
    optimizer.load_state_dict(moments)
    report = resumed.load(path) if by_file else resumed.load_state_dict(state)
    assert report.fits
    assert str(report) == "3 layers loaded"
    torch.set_rng_state(random)
    train(twin, optimizer, data(3), 4)
    for name, value in model.state_dict().items():
        assert torch.equal(twin.state_dict()[name], value), name
    assert resumed.quota() == shield.quota()
    if options.get("keep_tasks"):
        assert resumed.forget(0).quota() == shield.forget(0).quota()
        ours, theirs = (s.state_dict()["tensors"] for s in (resumed, shield))
        assert all(torch.equal(ours[name], value) for name, value in theirs.items())
        stiff = [name for name in ours if name.endswith("/stiffness")]
        assert len(ours) == len(theirs)
        assert len(stiff) == (6 if kind == "auto" else 0)


@pytest.mark.parametrize("case", ["rate", "bfloat16"])
def test_a_changed_rate_and_half_precision_resume_bit_equal(case: str) -> None:
    """The pull of SGD depends on the rate, and rounding of half-precision weights is kept."""
    dtype = torch.bfloat16 if case == "bfloat16" else torch.float64

    def begin() -> tuple[Any, Shield, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 3)).to(dtype)
        shield = Shield(model)
        optimizer = shield.guard(SGD(model.parameters(), lr=0.1))
        return model, shield, optimizer

    def go_on(model: nn.Module, optimizer: Any) -> None:
        for step in range(10):
            optimizer.param_groups[0]["lr"] *= 0.99 if case == "rate" else 1.0
            train(model, optimizer, data(2 + step).to(dtype), 1)

    model, shield, optimizer = begin()
    shield.remember(data(1).to(dtype))
    go_on(model, optimizer)
    saved = copy.deepcopy([part.state_dict() for part in (model, optimizer, shield)])
    go_on(model, optimizer)
    resumed = begin()
    for part, state in zip((resumed[0], resumed[2], resumed[1]), saved):
        part.load_state_dict(state)
    go_on(resumed[0], resumed[2])
    for before, now in zip(model.parameters(), resumed[0].parameters()):
        assert torch.equal(before, now)


@pytest.mark.parametrize("order", ["guard model optimizer shield", "model optimizer shield guard"])
def test_the_history_of_lbfgs_is_resumed(order: str) -> None:
    """It is cleared where a task ends, but not where it was loaded with the tasks."""

    def go_on(model: nn.Module, optimizer: Any) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            loss = (model(data(2)) - 1).square().mean()
            loss.backward()
            return float(loss.detach())

        for _ in range(3):
            optimizer.step(closure)

    def begin() -> dict[str, Any]:
        model = network().eval()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
        return {"model": model, "optimizer": optimizer, "shield": Shield(model)}

    parts, resumed = begin(), begin()
    parts["shield"].remember(data(1)).guard(parts["optimizer"])
    go_on(parts["model"], parts["optimizer"])
    saved = copy.deepcopy({name: part.state_dict() for name, part in parts.items()})
    go_on(parts["model"], parts["optimizer"])
    for name in order.split():
        if name == "guard":
            resumed["shield"].guard(resumed["optimizer"])
        else:
            resumed[name].load_state_dict(saved[name])
    go_on(resumed["model"], resumed["optimizer"])
    for before, now in zip(parts["model"].parameters(), resumed["model"].parameters()):
        assert torch.equal(before, now)
    parts["shield"].remember(data(2))
    assert not parts["optimizer"].state


def test_renamed_and_grown_models() -> None:
    state = Shield(network()).remember(data(1)).state_dict()
    layers: dict[str, nn.Module] = {"first": nn.Linear(8, 20), "norm": nn.BatchNorm1d(20)}
    layers |= {"last": nn.Linear(20, 3), "extra": nn.Linear(20, 2)}
    shield = Shield(nn.ModuleDict(layers).double())
    message = r"does not fit(.|\n)*first(.|\n)*not in the model: 0, 1, 4"
    with pytest.raises(ValueError, match=message):
        shield.load_state_dict(state)
    assert shield.n_tasks == 0
    names = {"0": "first", "1": "norm", "4": "last"}
    with pytest.raises(ValueError, match=r"in the model but not in the state: extra"):
        shield.load_state_dict(state, rename=names)
    report = shield.load_state_dict(state, rename=names, strict=False)
    assert sorted(report.loaded) == ["first", "last", "norm"]
    assert report.missing == ["extra"]
    assert not report.fits
    assert shield.quota()["extra"] == 0.0
    assert shield.quota()["first"] > 0
    assert shield.n_tasks == 1


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "shield.safetensors"
    shield = Shield(network()).remember(data(1))
    shield.save(path)
    whole = path.read_bytes()
    fresh = Shield(network())
    flipped = bytearray(whole)
    flipped[-20] ^= 1
    for content in (whole[:-9], whole[:40], b"", b"not a file at all", bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            fresh.load(path)
    with pytest.raises(FileNotFoundError):
        fresh.load(tmp_path / "nothing")
    shield.conceptors()["0"].save(path)
    with pytest.raises(ValueError, match=r"not the state of a Shield|not a shield file"):
        fresh.load(path)
    assert fresh.n_tasks == 0
    path.write_bytes(whole)
    assert fresh.load(path).fits


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


def test_the_state_of_a_model_is_no_state_of_a_shield(tmp_path: Path) -> None:
    model, path = network(), tmp_path / "model.pt"
    torch.save(model.state_dict(), path)
    shield = Shield(model)
    with pytest.raises(ValueError, match=r"state of a model, for model\.load_state_dict"):
        shield.load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match=r"written by torch\.save.*model\.load_state_dict"):
        shield.load(path)


def test_folders_are_created(tmp_path: Path) -> None:
    shield = Shield(network()).remember(data(1))
    shield.save(tmp_path / "new" / "shield.safetensors")
    assert Shield(network()).load(tmp_path / "new" / "shield.safetensors").fits
