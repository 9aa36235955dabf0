"""Saved, loaded, copied, moved, exported, added up; and damaged states, which change nothing."""

import copy
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
from readout.common import DIM, assert_close, assert_same_state, samples, state

State = dict[str, Any]
LIFTS: dict[str, Callable[[], Any]] = {
    "plain": lambda: 0,
    "relu": lambda: 9,
    "fourier": lambda: RandomFeatures(DIM, 12, "fourier"),
    "image": lambda: RandomFeatures(DIM, 12, "tanh", image=(2, 3)),
    "patches": lambda: PatchFeatures((1, 2, 3), 5, size=2, grid=1),
    "parts": lambda: SideBySide(RandomFeatures(4, 12), RandomFeatures(2, 5)),
}
each_lift = pytest.mark.parametrize("lift", LIFTS)


def new(lift: str = "relu", **options: Any) -> Readout:
    return Readout(DIM, LIFTS[lift](), **options)


def learned(lift: str = "relu") -> Readout:
    X, y = samples(0, 60, dtype=torch.float32)
    return new(lift).learn(X + 3, y)


def saved_state(readout: Readout, file: Path) -> State:
    torch.save(readout.state_dict(), file)
    loaded: State = torch.load(file, weights_only=True)
    return loaded


def safetensors_state(readout: Readout, file: Path) -> State:
    save_file(readout.state_dict(), file)
    return load_file(file)


COPIES: list[Callable[[Readout, Readout, Path], Any]] = [
    lambda readout, other, file: other.load_state_dict(saved_state(readout, file)),
    lambda readout, other, file: other.load_state_dict(safetensors_state(readout, file)),
    lambda readout, _, file: copy.deepcopy(readout),
    lambda readout, _, file: pickle.loads(pickle.dumps(readout)),
    lambda readout, _, file: copy.deepcopy(readout).half(),
]


@pytest.mark.parametrize("way", COPIES)
@each_lift
def test_copies_are_the_same_and_independent(way: Any, lift: str, tmp_path: Path) -> None:
    readout, other = learned(lift), new(lift)
    X, y = samples(3, 40, dtype=torch.float32)
    other.learn(10 * X, y + 1).predict(X)
    scores, before, saved = readout(X), state(readout), readout.state_dict()
    copied = way(readout, other, tmp_path / "readout")
    copied = copied if isinstance(copied, Readout) else other
    assert_same_state(copied.state_dict(), before)
    assert torch.equal(copied(X), scores)
    copied.learn(X, y)
    assert_same_state(readout.state_dict(), before)
    readout.learn(X, y)
    assert_same_state(copied.state_dict(), state(readout))
    assert_same_state(saved, before)  # a saved state does not change by learning


def test_a_readout_is_part_of_a_model() -> None:
    X = normal(0, 5, DIM).float()
    model, other = (nn.Sequential(nn.Linear(DIM, DIM), r) for r in (learned(), new()))
    other.to("meta").to_empty(device="cpu")
    assert not other.load_state_dict(model.state_dict(), strict=False).missing_keys
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(X), model(X))
    before = state(model[1])
    body = {name: value for name, value in model.state_dict().items() if name.startswith("0.")}
    assert model.load_state_dict(body, strict=False).missing_keys
    with pytest.raises(RuntimeError, match="options"):
        model.load_state_dict(body)
    assert_same_state(model[1].state_dict(), before)


def replaced(name: str, change: Callable[[Tensor], Any]) -> Callable[[State], State]:
    return lambda saved: {**saved, name: change(saved[name])}


def without(*names: str) -> Callable[[State], State]:
    return lambda saved: {k: v for k, v in saved.items() if k not in names}


SUMS = ["sums.gram", "sums.cross", "sums.squares", "sums.count"]
LIFT = ["lift.center", "lift.weight", "lift.bias"]
DAMAGE: dict[str, Callable[[State], State]] = {
    **{f"no {name}": without(name) for name in [*SUMS, *LIFT, "options", "lift.calibrated"]},
    **{f"NaN in {name}": replaced(name, lambda t: t * torch.nan) for name in [*SUMS, *LIFT]},
    **{f"more of {name}": replaced(name, lambda t: t[None]) for name in [*SUMS, *LIFT]},
    **{f"words for {name}": replaced(name, lambda t: "sum") for name in [*SUMS, *LIFT, "options"]},
    **{f"sparse {name}": replaced(name, lambda t: t.to_sparse()) for name in SUMS},
    **{f"meta {name}": replaced(name, lambda t: t.to("meta")) for name in SUMS},
    "lopsided": replaced("sums.gram", lambda t: t + torch.eye(len(t)).roll(1, 0) * t.max()),
    "negative diagonal": replaced("sums.gram", lambda t: -t),
    "negative squares": replaced("sums.squares", lambda t: -t),
    "no samples": replaced("sums.count", lambda t: t * torch.tensor([0.0, 1.0]).double()),
    "other count": replaced("sums.count", lambda t: t * torch.tensor([2.0, 1.0]).double()),
    "eps of 1": replaced("sums.count", lambda t: torch.tensor([t[0], 1.0]).double()),
    "not calibrated": replaced("lift.calibrated", torch.zeros_like),
    "another width": lambda saved: state(Readout(DIM, 10).learn(*samples(0))),
    "another lift": lambda saved: state(Readout(DIM, 9, activation="tanh").learn(*samples(0))),
    "nothing": lambda saved: {},
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_state_changes_nothing(name: str) -> None:
    bad = DAMAGE[name](learned().state_dict())
    X, y = samples(8, 30, dtype=torch.float32)
    readout = new().learn(5 * X, y)
    scores, before = readout(X), state(readout)
    for model, prefix in ((readout, ""), (nn.Sequential(readout), "0.")):
        with pytest.raises(RuntimeError):
            model.load_state_dict({f"{prefix}{key}": value for key, value in bad.items()})
    assert_same_state(readout.state_dict(), before)
    assert torch.equal(readout(X), scores)


@each_lift
def test_exports_are_plain_layers_with_the_same_scores(lift: str) -> None:
    X, y = samples(0, dtype=torch.float32)
    readout = learned(lift)
    exported = readout.export()
    assert_close(exported(X), readout(X), 1e-4)
    assert type(exported[1]) is nn.Linear
    before = exported(X)
    readout.learn(X, (y + 1) % 4)
    assert torch.equal(exported(X), before)
    assert sum(x.numel() for x in exported.state_dict().values()) < 300  # no sums inside
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(exported, (X[:5],), dynamic_shapes=({0: batch},))
    assert_close(program.module()(X), exported(X), 1e-5)


def base() -> Readout:
    return Readout(DIM, 12, regularization=1e-3).calibrate(samples(0)[0])


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
    assert_same_state((new(lift) + both).state_dict(), state(both))


def test_readouts_with_different_lifts_are_not_added() -> None:
    whole = base().learn(*samples(1))
    with pytest.raises(ValueError, match=r"different lifts.*readout\.fresh\(\)"):
        whole + Readout(DIM).learn(*samples(1))
