"""Saved, loaded, copied, moved; and damaged states, which change nothing."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from conceptors import PatchFeatures, Readout
from readout.common import DIM, assert_same_state, samples, state
from helpers import normal

State = dict[str, Any]


def learned(lift: int = 9, **options: Any) -> Readout:
    X, y = samples(0, 60, dtype=torch.float32)
    return Readout(DIM, lift, **options).learn(X, y).learn(X[:9], y[:9], "a.b").learn(X, y, "sums")


def by_torch(found: State, _: Path) -> State:
    buffer = io.BytesIO()
    torch.save(found, buffer)
    buffer.seek(0)
    loaded: State = torch.load(buffer, weights_only=True)
    return loaded


def by_safetensors(found: State, folder: Path) -> State:
    save_file(found, folder / "readout.safetensors")
    return load_file(folder / "readout.safetensors")


@pytest.mark.parametrize("way", [by_torch, by_safetensors])
@pytest.mark.parametrize("lift", [0, 9])
@pytest.mark.parametrize("target", ["new", "other", "used"])
def test_a_saved_state_is_the_readout(way: Any, lift: int, target: str, tmp_path: Path) -> None:
    source = learned(lift)
    X, y = samples(3, 40, dtype=torch.float32)
    into = Readout(DIM, lift)
    if target == "other":
        into.learn(10 * X, normal(0, 40, 2)).learn(X, normal(1, 40, 2), "gone").predict(X)
    if target == "used":
        into.learn(X, y, "gone").predict(X)
    into.load_state_dict(way(source.state_dict(), tmp_path))
    assert_same_state(into.state_dict(), state(source))
    assert torch.equal(into(X), source(X))
    assert into.tasks == ["a.b", "sums"]
    for readout in (into, source):
        readout.learn(X, y).forget("a.b")
    assert_same_state(into.state_dict(), state(source))


def test_a_saved_state_does_not_change_by_learning() -> None:
    readout = learned()
    saved = readout.state_dict()
    kept = copy.deepcopy(saved)
    X, y = samples(3, 40, dtype=torch.float32)
    readout.learn(X, y)
    assert_same_state(saved, kept)
    readout.load_state_dict(saved)
    readout.learn(X, y)
    assert_same_state(saved, kept)


def test_a_new_readout_is_a_state_too() -> None:
    used = learned()
    used.load_state_dict(Readout(DIM, 9).state_dict())
    assert used.n_samples == 0
    assert used.tasks == []
    X, y = samples(1, 30)
    used.learn(7 * X, y)  # calibrates anew
    assert torch.equal(used.predict(X), Readout(DIM, 9).learn(7 * X, y).predict(X))


def test_all_forgotten_is_a_state_too() -> None:
    X, y = samples(0, 30)
    readout = Readout(DIM, 9).learn(X, y, "a").forget("a")
    again = Readout(DIM, 9)
    again.load_state_dict(readout.state_dict())
    assert again.learn(X, normal(0, 30)).n_samples == 30  # anything may come now


@pytest.mark.parametrize("strict", [True, False])
def test_a_readout_is_part_of_a_model(strict: bool) -> None:
    X = normal(0, 5, DIM).float()
    model, other = (nn.Sequential(nn.Linear(DIM, DIM), r) for r in (learned(), Readout(DIM, 9)))
    found = other.load_state_dict(model.state_dict(), strict=strict)
    assert not found.missing_keys
    assert not found.unexpected_keys
    with torch.no_grad():
        assert torch.equal(other(X), model(X))


def test_a_state_of_the_body_alone_leaves_the_readout() -> None:
    model = nn.Sequential(nn.Linear(DIM, DIM), learned())
    before = state(model[1])
    body = {name: value for name, value in model.state_dict().items() if name.startswith("0.")}
    found = model.load_state_dict(body, strict=False)
    assert found.missing_keys
    assert_same_state(model[1].state_dict(), before)
    with pytest.raises(RuntimeError, match="kind"):
        model.load_state_dict(body)
    with pytest.raises(RuntimeError, match=r"Unexpected.*more"):
        model[1].load_state_dict({**Readout(DIM, 9).state_dict(), "more": torch.zeros(1)})
    assert_same_state(model[1].state_dict(), before)


COPIES: dict[str, Callable[[Readout], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda readout: pickle.loads(pickle.dumps(readout)),
    "half": lambda readout: copy.deepcopy(readout).half(),
    "double": lambda readout: copy.deepcopy(readout).double(),
    "to": lambda readout: copy.deepcopy(readout).to("cpu", torch.bfloat16),
    "requires_grad": lambda readout: copy.deepcopy(readout).requires_grad_(),
    "share_memory": lambda readout: copy.deepcopy(readout).share_memory(),
}


@pytest.mark.parametrize("lift", [0, 9])
@pytest.mark.parametrize("way", COPIES)
def test_copies_are_the_same_and_their_own(way: str, lift: int) -> None:
    readout = learned(lift)
    X, y = samples(3, 40, dtype=torch.float32)
    wanted, before = readout(X), state(readout)
    made = COPIES[way](readout)
    assert_same_state(made.state_dict(), before)
    assert torch.equal(made(X), wanted)
    made.learn(X, y, "more")
    assert_same_state(readout.state_dict(), before)


def test_a_readout_made_without_memory_is_filled_later() -> None:
    model = nn.Sequential(Readout(DIM, 9)).to("meta")
    model.to_empty(device="cpu")
    model.load_state_dict(nn.Sequential(learned()).state_dict())
    X = normal(0, 5, DIM).float()
    assert torch.equal(model(X), learned()(X))


# --- damaged --------------------------------------------------------------------------------------


def replaced(name: str, change: Callable[[Tensor], Any]) -> Callable[[State], State]:
    return lambda found: {**found, name: change(found[name])}


def without(*names: str) -> Callable[[State], State]:
    return lambda found: {k: v for k, v in found.items() if k not in names}


def turned(gram: Tensor) -> Tensor:
    made = gram.clone()
    made[0, 1] += 1 + made[0, 1].abs()
    return made


class Harmful:
    """Would be noticed if it were ever called, compared or unpickled."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(f"{name} of a stranger was asked for")


PARTS = ["sums.gram", "sums.cross", "sums.squares", "sums.count", "tasks.a.b.gram"]
LIFT = ["lift.center", "lift.weight", "lift.bias"]
DAMAGE: dict[str, Callable[[State], State]] = {
    **{f"no {name}": without(name) for name in [*PARTS, *LIFT, "kind"]},
    "no lift": without(*LIFT),
    "no sums": lambda found: {k: v for k, v in found.items() if "." not in k or "lift" in k},
    **{f"NaN in {name}": replaced(name, lambda t: t * torch.nan) for name in [*PARTS, *LIFT]},
    **{f"infinite {name}": replaced(name, lambda t: t + torch.inf) for name in PARTS},
    **{f"more of {name}": replaced(name, lambda t: t[None]) for name in [*PARTS, *LIFT]},
    **{f"less of {name}": replaced(name, lambda t: t[:1]) for name in [*PARTS[:2], *LIFT]},
    **{f"words for {name}": replaced(name, lambda t: "sum") for name in [*PARTS, *LIFT, "kind"]},
    **{f"integers for {name}": replaced(name, lambda t: t.long()) for name in [*PARTS, *LIFT]},
    **{f"complex {name}": replaced(name, lambda t: t.to(torch.complex64)) for name in PARTS},
    **{f"sparse {name}": replaced(name, lambda t: t.to_sparse()) for name in PARTS},
    **{f"meta {name}": replaced(name, lambda t: t.to("meta")) for name in PARTS},
    **{f"stranger for {name}": replaced(name, lambda t: Harmful()) for name in [*PARTS, "kind"]},
    "lopsided": replaced("sums.gram", turned),
    "negative diagonal": replaced("sums.gram", lambda t: -t),
    "negative squares": replaced("sums.squares", lambda t: -t),
    "negative count": replaced("sums.count", lambda t: -t),
    "no samples": replaced("sums.count", lambda t: t * torch.tensor([0.0, 1.0]).double()),
    "other count": replaced("sums.count", lambda t: t * torch.tensor([2.0, 1.0]).double()),
    "eps of 1": replaced("sums.count", lambda t: torch.tensor([t[0], 1.0]).double()),
    **{f"kind {k}": replaced("kind", lambda t, k=k: torch.tensor(k)) for k in (-1, 0, 3, 99)},  # type: ignore[misc]
    "kind 0.5": replaced("kind", lambda t: torch.tensor(0.5)),
    "infinite kind": replaced("kind", lambda t: torch.tensor(torch.inf)),
    "two kinds": replaced("kind", lambda t: torch.tensor([1, 1])),
    "another width": lambda found: state(Readout(DIM, 10).learn(*samples(0))),
    "nothing": lambda found: {},
}  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_state_changes_nothing(name: str, inside: bool) -> None:
    bad = DAMAGE[name](learned().state_dict())
    X, y = samples(8, 30, dtype=torch.float32)
    readout = Readout(DIM, 9).learn(5 * X, y).learn(X, y, "own")
    wanted, before = readout(X), state(readout)
    model: nn.Module = readout
    if inside:
        model, bad = nn.Sequential(readout), {f"0.{k}": v for k, v in bad.items()}
    with pytest.raises(RuntimeError):
        model.load_state_dict(bad)
    assert_same_state(readout.state_dict(), before)
    assert torch.equal(readout(X), wanted)
    assert torch.equal(copy.deepcopy(readout).learn(X, y).counts, readout.counts + y.bincount())


def test_states_of_other_readouts_are_refused() -> None:
    with pytest.raises(RuntimeError, match="4 classes are more than this readout's 3"):
        Readout(DIM, 9, classes=3).load_state_dict(learned().state_dict())
    two = Readout(DIM).learn(normal(0, 9, DIM), normal(1, 9, 2)).state_dict()
    three = Readout(DIM).learn(normal(0, 9, DIM), normal(1, 9, 3), "a").state_dict()
    readout = Readout(DIM)
    with pytest.raises(RuntimeError, match=r"different numbers of outputs: \[2, 3\]"):
        readout.load_state_dict({**three, **two})
    assert readout.n_samples == 0


def test_a_failed_load_leaves_the_parameters_of_a_lift() -> None:
    X, y = samples(0, 30, dtype=torch.float32)
    readouts = [Readout(DIM, nn.Linear(DIM, 5)).learn(X, y) for _ in range(2)]
    before = state(readouts[0])
    with pytest.raises(RuntimeError):
        readouts[0].load_state_dict(replaced("sums.gram", turned)(readouts[1].state_dict()))
    assert_same_state(readouts[0].state_dict(), before)


def test_patches_are_saved_too() -> None:
    X = normal(0, 6, 64)
    lifts = [PatchFeatures((1, 8, 8), 5, size=3, grid=2) for _ in range(2)]
    readout = Readout(64, lifts[0]).learn(X, torch.arange(6))
    other = Readout(64, lifts[1])
    other.load_state_dict(readout.state_dict())
    assert torch.equal(other(X), readout(X))
