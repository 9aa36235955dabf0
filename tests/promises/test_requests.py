"""What is asked for is what is done: names, batches, precision, threads, states."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield
from promises.common import data, drift, network, outputs, shielded, train

# --- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"exclude": "encoder.*"}, "exclude has a pattern .* 'encoder.*'.*did you mean 'decoder"),
        ({"freeze": ["decoder", "haed"]}, "freeze has a pattern .* 'haed'; did you mean 'head'"),
        ({"aperture": {"heads": 3.0, "*": 9.0}}, "aperture has a pattern .* 'heads'; did you mean"),
    ],
)
def test_misspelt_patterns_are_refused(options: dict[str, Any], words: str) -> None:
    model = nn.Module()
    model.decoder, model.head = nn.Linear(3, 3), nn.Linear(3, 2)
    with pytest.raises(ValueError, match=words):
        Shield(model, **options)
    assert Shield(model, exclude="head.*").n_tasks == 0  # nothing is left behind


# --- batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ({"x": data(1)}, r"got one mapping of \['x'\]; pass a DataLoader or \[batch\]; .*feed="),
        (
            (data(1), torch.zeros(20)),
            r"one tuple of tensors of shapes \[\[20, 12\], \[20\]\].*feed=",
        ),
        ([{"x": data(1)}], r"a mapping of \['x'\]: .*unexpected keyword.*model\(batch\['x'\]\)"),
    ],
)
def test_one_batch_for_many_shows_feed(batches: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        Shield(network()).remember(batches)


# --- precision --------------------------------------------------------------------------------


def test_rounding_of_half_precision_is_not_taken_for_directions() -> None:
    x = data(1, 2000, 64, 8).float()
    claims = {}
    for aperture in (3.0, 1000.0):
        shield = Shield(nn.Linear(64, 10), aperture)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if aperture > 100:
                with pytest.raises(ValueError, match="half precision is too coarse for aperture"):
                    shield.remember(x)
            else:
                claims[aperture] = shield.remember(x).quota()["Linear"]
        claims[-aperture] = shield.remember(x).quota()["Linear"]
    assert claims[3.0] == pytest.approx(claims[-3.0], rel=0.02)
    assert claims[-1000.0] == pytest.approx(9 / 65, rel=0.01)


# --- threads ----------------------------------------------------------------------------------


def _meanwhile(work: Callable[[], object], other: Callable[[], object]) -> list[BaseException]:
    """Run `other` in another thread; returns what it raised."""
    raised: list[BaseException] = []

    def attempt() -> None:
        try:
            other()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    work()
    return raised


def test_a_shield_works_in_one_thread_at_a_time() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    found: list[BaseException] = []

    def feed(model: nn.Module, batch: Tensor) -> None:
        for other in (lambda: shield.remember(data(4)), lambda: train(model, optimizer, 1)):
            found.extend(_meanwhile(lambda: None, other))
        model(batch)

    shield.remember(data(3), feed=feed)
    assert [str(error)[:39] for error in found] == ["this shield is in use by another thread"] * 2
    assert shield.n_tasks == 2


# --- states -----------------------------------------------------------------------------------


def _break(state: dict[str, Any], how: str) -> None:
    first = next(iter(state["claimed"]))
    if how == "stiffness":
        state["stiffness"][first] = torch.ones(7)
    if how == "anchor":
        state["anchors"]["0.weight"] = torch.full((64, 12), torch.nan)
    if how == "note":
        state["notes"] = {first: "none"}
    if how == "format":
        state["format"] = "x"
    if how == "version":
        state["version"] = 2
    if how == "nan":
        state["claimed"][first]["odds_matrix"][0, 0] = torch.nan
    if how == "tasks":
        state["tasks"] = [{}, {}]
    if how == "names":
        state["claimed"] = {f"other.{name}": c for name, c in state["claimed"].items()}
    if how == "claims":
        state["claimed"][first] = {"vectors": torch.eye(3), "odds": torch.ones(3), "rest": 0.0}


HOW = ["format", "version", "nan", "stiffness", "anchor", "note", "tasks", "names", "claims"]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_a_state_that_fails_changes_nothing(how: str, strict: bool) -> None:
    state = Shield(network()).remember(data(5)).state_dict()
    _break(state, how)
    model = network()
    shield = Shield(model, 1e6, hard=True)
    with pytest.raises(ValueError, match=r"damaged|does not fit|anchors of|format|version"):
        shield.load_state_dict(state, strict=strict)
    assert (shield.n_tasks, set(shield.quota().values())) == (0, {0.0})
    shield.remember(data(1))
    with pytest.raises(ValueError, match=r"damaged|does not fit|anchors of|format|version"):
        shield.load_state_dict(state, strict=strict)
    before = outputs(model)
    train(model, shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2)))
    assert shield.n_tasks == 1
    assert drift(model, before) < 1e-9


def test_a_failure_while_guards_are_told_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-2))
    before, quota = outputs(model), shield.quota()
    real, calls = torch.linalg.eigh, []

    def fails_once(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("no memory left")
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "eigh", fails_once)
        with pytest.raises(torch.OutOfMemoryError):
            shield.remember(data(3))
    assert (shield.n_tasks, shield.quota()) == (1, quota)
    train(model, optimizer)
    assert drift(model, before) < 1e-9


# --- statistics -------------------------------------------------------------------------------


def _with_norm() -> nn.Sequential:
    model = network()
    model.insert(1, nn.BatchNorm1d(64).double())
    return model


def _moves(model: nn.Module) -> bool:
    """Whether a pass in training changes the statistics."""
    before = model[1].running_mean.clone()  # type: ignore[index]
    model.train()(data(7) + 3)
    return not torch.equal(before, model[1].running_mean)  # type: ignore[index]


@pytest.mark.parametrize("how", ["detach", "forget"])
def test_batchnorm_is_released(how: str) -> None:
    model = _with_norm()
    shield = Shield(model, keep_tasks=True).remember(data(1))
    assert not _moves(model)
    shield.detach() if how == "detach" else shield.forget(0)
    assert _moves(model)


def test_a_pickled_model_comes_without_a_shield() -> None:
    model = _with_norm()
    shield = Shield(model).remember(data(1))
    assert _moves(pickle.loads(pickle.dumps(model)))
    assert not _moves(model)
    assert shield.n_tasks == 1
