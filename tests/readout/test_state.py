"""Saved, loaded, copied, moved, exported, added up; and damaged states, which change nothing."""

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

from conceptors import PatchFeatures, RandomFeatures, Readout
from conceptors.readout import SideBySide
from helpers import normal
from processes import Pair
from readout.common import DIM, assert_close, assert_same_state, one_hot, samples, state

State = dict[str, Any]
LIFTS: dict[str, Callable[[], Any]] = {
    "plain": lambda: 0,
    "relu": lambda: 9,
    "fourier": lambda: RandomFeatures(DIM, 12, "fourier"),
    "image": lambda: RandomFeatures(DIM, 12, "tanh", image=(2, 3), unit=True),
    "patches": lambda: PatchFeatures((1, 2, 3), 5, size=2, grid=1),
    "parts": lambda: SideBySide(RandomFeatures(4, 12), RandomFeatures(2, 5)),
}
each_lift = pytest.mark.parametrize("lift", LIFTS)


def new(lift: str = "relu", **options: Any) -> Readout:
    return Readout(DIM, LIFTS[lift](), **options)


def learned(lift: str = "relu", **options: Any) -> Readout:
    X, y = samples(0, 60, dtype=torch.float32)
    return new(lift, **options).learn(X + 3, y)


def by_torch(saved: State, _: Path) -> State:
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    loaded: State = torch.load(buffer, weights_only=True)
    return loaded


def by_safetensors(saved: State, folder: Path) -> State:
    save_file(saved, folder / "readout.safetensors")
    return load_file(folder / "readout.safetensors")


@pytest.mark.parametrize("way", [by_torch, by_safetensors])
@pytest.mark.parametrize("used", [False, True])
@each_lift
def test_a_saved_state_is_the_readout(way: Any, lift: str, used: bool, tmp_path: Path) -> None:
    source, into = learned(lift), new(lift)
    X, y = samples(3, 40, dtype=torch.float32)
    if used:
        into.learn(10 * X, normal(0, 40, 2)).predict(X)
    into.load_state_dict(way(source.state_dict(), tmp_path))
    assert_same_state(into.state_dict(), state(source))
    assert torch.equal(into(X), source(X))
    saved = source.state_dict()
    before = copy.deepcopy(saved)
    for readout in (into, source):
        readout.learn(X, y)
    assert_same_state(into.state_dict(), state(source))
    assert_same_state(saved, before)  # a saved state does not change by learning


@pytest.mark.parametrize("strict", [True, False])
def test_a_readout_is_part_of_a_model(strict: bool) -> None:
    X = normal(0, 5, DIM).float()
    model, other = (nn.Sequential(nn.Linear(DIM, DIM), r) for r in (learned(), new()))
    keys = other.load_state_dict(model.state_dict(), strict=strict)
    assert not keys.missing_keys
    assert not keys.unexpected_keys
    with torch.no_grad():
        assert torch.equal(other(X), model(X))
    before = state(model[1])
    body = {name: value for name, value in model.state_dict().items() if name.startswith("0.")}
    assert model.load_state_dict(body, strict=False).missing_keys
    with pytest.raises(RuntimeError, match="kind"):
        model.load_state_dict(body)
    assert_same_state(model[1].state_dict(), before)


COPIES: dict[str, Callable[[Readout], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda readout: pickle.loads(pickle.dumps(readout)),
    "half": lambda readout: copy.deepcopy(readout).half(),
}


@pytest.mark.parametrize("lift", ["plain", "relu"])
@pytest.mark.parametrize("way", COPIES)
def test_copies_are_the_same_and_independent(way: str, lift: str) -> None:
    readout = learned(lift)
    X, y = samples(3, 40, dtype=torch.float32)
    scores, before = readout(X), state(readout)
    copied = COPIES[way](readout)
    assert_same_state(copied.state_dict(), before)
    assert torch.equal(copied(X), scores)
    copied.learn(X, y)
    assert_same_state(readout.state_dict(), before)


def test_a_readout_on_the_meta_device_is_filled_later() -> None:
    model = nn.Sequential(new()).to("meta")
    model.to_empty(device="cpu")
    model.load_state_dict(nn.Sequential(learned()).state_dict())
    X = normal(0, 5, DIM).float()
    assert torch.equal(model(X), learned()(X))


# --- damaged --------------------------------------------------------------------------------------


def replaced(name: str, change: Callable[[Tensor], Any]) -> Callable[[State], State]:
    return lambda saved: {**saved, name: change(saved[name])}


def without(*names: str) -> Callable[[State], State]:
    return lambda saved: {k: v for k, v in saved.items() if k not in names}


class Harmful:
    """Would be noticed if it were ever called, compared or unpickled."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(f"{name} of a stranger was asked for")


SUMS = ["sums.gram", "sums.cross", "sums.squares", "sums.count"]
LIFT = ["lift.center", "lift.weight", "lift.bias"]
DAMAGE: dict[str, Callable[[State], State]] = {
    **{f"no {name}": without(name) for name in [*SUMS, *LIFT, "kind", "lift.calibrated"]},
    "no lift": without(*LIFT),
    "no sums": without(*SUMS),
    "only a lift": without(*SUMS, "kind"),
    **{f"NaN in {name}": replaced(name, lambda t: t * torch.nan) for name in [*SUMS, *LIFT]},
    **{f"more of {name}": replaced(name, lambda t: t[None]) for name in [*SUMS, *LIFT]},
    **{f"words for {name}": replaced(name, lambda t: "sum") for name in [*SUMS, *LIFT, "kind"]},
    **{f"integers for {name}": replaced(name, lambda t: t.long()) for name in SUMS},
    **{f"sparse {name}": replaced(name, lambda t: t.to_sparse()) for name in SUMS},
    **{f"meta {name}": replaced(name, lambda t: t.to("meta")) for name in SUMS},
    **{f"stranger for {name}": replaced(name, lambda t: Harmful()) for name in [*SUMS, "kind"]},
    "lopsided": replaced("sums.gram", lambda t: t + torch.eye(len(t)).roll(1, 0) * t.max()),
    "negative diagonal": replaced("sums.gram", lambda t: -t),
    "negative squares": replaced("sums.squares", lambda t: -t),
    "no samples": replaced("sums.count", lambda t: t * torch.tensor([0.0, 1.0]).double()),
    "other count": replaced("sums.count", lambda t: t * torch.tensor([2.0, 1.0]).double()),
    "eps of 1": replaced("sums.count", lambda t: torch.tensor([t[0], 1.0]).double()),
    "not calibrated": replaced("lift.calibrated", torch.zeros_like),
    **{f"kind {k}": replaced("kind", lambda t, k=k: torch.tensor(k)) for k in (-1, 0, 3, 0.5)},  # type: ignore[misc]
    "two kinds": replaced("kind", lambda t: torch.tensor([1, 1])),
    "another width": lambda saved: state(Readout(DIM, 10).learn(*samples(0))),
    "nothing": lambda saved: {},
}  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_state_changes_nothing(name: str, inside: bool) -> None:
    bad = DAMAGE[name](learned().state_dict())
    X, y = samples(8, 30, dtype=torch.float32)
    readout = new().learn(5 * X, y)
    scores, before = readout(X), state(readout)
    model: nn.Module = readout
    if inside:
        model, bad = nn.Sequential(readout), {f"0.{k}": v for k, v in bad.items()}
    with pytest.raises(RuntimeError):
        model.load_state_dict(bad)
    assert_same_state(readout.state_dict(), before)
    assert torch.equal(readout(X), scores)


# --- exported -------------------------------------------------------------------------------------


@each_lift
def test_exports_are_plain_layers_with_the_same_scores(lift: str) -> None:
    X, y = samples(0, dtype=torch.float32)
    readout = learned(lift)
    exported = readout.export()
    assert_close(exported(X), readout(X), 1e-4)
    assert isinstance(exported, nn.Linear if lift == "plain" else nn.Sequential)
    before = exported(X)
    readout.learn(X, (y + 1) % 4)
    assert torch.equal(exported(X), before)
    assert sum(x.numel() for x in exported.state_dict().values()) < 300  # no sums inside
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(exported, (X[:5],), dynamic_shapes=({0: batch},))
    assert_close(program.module()(X), exported(X), 1e-5)


# --- added up -------------------------------------------------------------------------------------


@each_lift
def test_a_sum_of_two_has_learned_what_both_learned(lift: str) -> None:
    X, y = samples(0, dtype=torch.float32)
    both = new(lift).learn(X, y)
    one, two = both.fresh().learn(X[:30], y[:30]), both.fresh().learn(X[30:], y[30:])
    before = state(one), state(two)
    for total in (one + two, two + one, one + two + both.fresh()):
        assert_close(total(X), both(X), 1e-3)  # products are float32
        assert torch.equal(total.counts, both.counts)
    assert_same_state(one.state_dict(), before[0])
    assert_same_state(two.state_dict(), before[1])
    assert (new(lift) + new(lift)).n_samples == 0
    assert_same_state((new(lift) + both).state_dict(), state(both))


def test_what_does_not_add_up_is_refused() -> None:
    X, y = samples(0)
    one = Readout(DIM, 12).learn(X, y)
    others = [
        Readout(DIM, 12).learn(2 * X, y),
        Readout(DIM, 12, seed=1).learn(X, y),
        Readout(DIM, 12, activation="tanh").learn(X, y),
        Readout(DIM).learn(X, y),
    ]
    for other in others:
        with pytest.raises(ValueError, match=r"different lifts.*readout\.fresh\(\)"):
            one + other
    with pytest.raises(ValueError, match="these have learned labels and numbers"):
        one + one.fresh().learn(X, one_hot(y))
    with pytest.raises(TypeError):
        one + 1  # type: ignore[operator]


def base() -> Readout:
    return Readout(DIM, 12, regularization=1e-3).calibrate(samples(0)[0])


def two_shares(rank: int) -> tuple[Tensor, Tensor, int]:
    """Each process has seen other classes."""
    X, y = samples(1)
    readout = base().learn(X[y % 2 == rank], y[y % 2 == rank])
    before = state(readout)
    total = readout.merged()
    assert_same_state(readout.state_dict(), before)
    return total.solution.weights, total.counts, total.n_samples


def one_is_empty(rank: int) -> tuple[Tensor, int]:
    readout = base().learn(*samples(1)) if rank else base()
    return readout.merged().counts, base().merged().n_samples


def unlike(rank: int) -> list[str]:
    """Every process raises, and none waits for the others."""
    X, y = samples(rank)
    messages = []
    for readout in (Readout(DIM, 12).learn(X, y), base().learn(X, y if rank else one_hot(y))):
        with pytest.raises(ValueError, match=r"different|learned") as caught:
            readout.merged()
        messages.append(str(caught.value))
    return messages


def test_processes_add_up(pair: Pair) -> None:
    whole = base().learn(*samples(1))
    for weights, counts, count in pair(two_shares):
        assert_close(weights, whole.solution.weights)
        assert torch.equal(counts, whole.counts)
        assert count == whole.n_samples
    for counts, nothing in pair(one_is_empty):
        assert torch.equal(counts, whole.counts)
        assert nothing == 0
    here, there = pair(unlike)
    assert here == there
    assert "fresh()" in here[0]
