"""Bad input: one clear line, and nothing changed, not even a bit of the state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import RandomFeatures, Readout
from readout.common import DIM, assert_same_state, samples, state
from helpers import normal

BAD: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "NaN": (lambda X, y: (X.clone().fill_(torch.nan), y), "NaN or infinite"),
    "infinite": (lambda X, y: (X / 0, y), "NaN or infinite"),
    "huge": (lambda X, y: (X.double() * 1e30, y), "scale them"),
    "far larger": (lambda X, y: (X * 1e16, y), "far larger than those that the lift"),
    "no rows": (lambda X, y: (X[:0], y[:0]), "no rows"),
    "another width": (lambda X, y: (X[:, 1:], y), r"expected \[n, 6\]"),
    "one row": (lambda X, y: (X[0], y[:1]), r"expected \[n, 6\]"),
    "whole numbers": (lambda X, y: (X.long(), y), "tensor of floats"),
    "a list": (lambda X, y: (X.tolist(), y), "tensor of floats, got list"),
    "sparse": (lambda X, y: (X.to_sparse(), y), "dense"),
    "elsewhere": (lambda X, y: (X.to("meta"), y), "on meta, the readout is on cpu"),
    "fewer labels": (lambda X, y: (X, y[1:]), "targets have shape"),
    "labels elsewhere": (lambda X, y: (X, y.to("meta")), "targets are on meta"),
    "sparse labels": (lambda X, y: (X, y.to_sparse()), "dense"),
    "below zero": (lambda X, y: (X, y - 9), "label -9 is out of range"),
    "beyond": (lambda X, y: (X, y + 10**6), "out of range"),
    "far beyond": (lambda X, y: (X, y + 2**62), "out of range"),
    "truth": (lambda X, y: (X, y > 0), "integers .* or floats"),
    "complex": (lambda X, y: (X, y.to(torch.complex64)), "integers .* or floats"),
    "no tensor": (lambda X, y: (X, y.tolist()), "integers .* or floats"),
    "labels in columns": (lambda X, y: (X, y[:, None]), r"labels must have shape \[n\]"),
    "numbers": (lambda X, y: (X, y.float()), "labels were learned so far"),
    "NaN targets": (lambda X, y: (X, y.float() * torch.nan), "labels were learned|NaN"),
    "three axes": (lambda X, y: (X, y[:, None, None]), "targets have shape"),
}


@pytest.mark.parametrize("lift", [0, 9])
@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_bad_samples_change_nothing(name: str, new: bool, lift: int) -> None:
    change, message = BAD[name]
    X, y = samples(0, 20, dtype=torch.float32)
    readout = Readout(DIM, lift)
    if not new:
        readout.learn(X, y).learn(X, y, "kept").predict(X)
    elif name in ("numbers", "far larger"):
        pytest.skip("fine if nothing was learned")
    before = state(readout)
    for task in (None, "kept", "new"):
        with pytest.raises((ValueError, TypeError), match=message) as caught:
            readout.learn(*change(X, y), task)
        assert "\n" not in str(caught.value)
        assert_same_state(readout.state_dict(), before)
    assert readout.tasks == ([] if new else ["kept"])
    readout.learn(X, y)
    assert readout.n_samples == (20 if new else 60)


def test_labels_from_a_number_of_classes_on_are_refused() -> None:
    X, y = samples(0, 20)
    readout = Readout(DIM, classes=4).learn(X, y)
    with pytest.raises(ValueError, match=r"label 4 is out of range: .* from 0 to 3"):
        readout.learn(X, y + 1)
    assert readout.n_samples == 20


def test_numbers_keep_their_columns() -> None:
    readout = Readout(DIM).learn(normal(0, 9, DIM), normal(1, 9, 3))
    before = state(readout)
    for wrong in (normal(1, 9, 2), normal(1, 9), torch.zeros(9, dtype=torch.long)):
        with pytest.raises(ValueError, match="so far"):
            readout.learn(normal(0, 9, DIM), wrong)
    with pytest.raises(ValueError, match="NaN or infinite"):
        readout.learn(normal(0, 9, DIM), normal(1, 9, 3) * torch.nan)
    with pytest.raises(RuntimeError, match="numbers were learned, not classes"):
        _ = readout.counts
    assert_same_state(readout.state_dict(), before)


def test_tasks_have_names() -> None:
    X, y = samples(0, 20)
    readout = Readout(DIM, weighting="tasks")
    with pytest.raises(ValueError, match="needs the name of the task"):
        readout.learn(X, y)
    for name in ("", 3):
        with pytest.raises(TypeError, match="task must be a name"):
            readout.learn(X, y, name)  # type: ignore[arg-type]
    readout.learn(X, y, "a").learn(X, y, "b")
    with pytest.raises(ValueError, match=r"task 'c' were not kept \(kept: 'a', 'b'\)"):
        readout.forget("c")
    assert readout.tasks == ["a", "b"]


def test_nothing_learned_nothing_told() -> None:
    readout = Readout(DIM, 5)
    X = normal(0, 3, DIM)
    for ask in (readout, readout.predict):
        with pytest.raises(RuntimeError, match=r"call learn\(features, targets\) first"):
            ask(X)
    for name in ("quota", "regularization"):
        with pytest.raises(RuntimeError, match="nothing was learned yet"):
            getattr(readout, name)
    with pytest.raises(RuntimeError, match="nothing was learned yet"):
        readout.export()
    assert readout.n_samples == 0
    assert readout.counts.tolist() == []
    readout.calibrate(X)
    with pytest.raises(RuntimeError, match="the lift is fixed already"):
        readout.calibrate(X)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"regularization": 0.0}, ValueError),
        ({"regularization": "best"}, TypeError),
        ({"regularization": float("nan")}, ValueError),
        ({"classes": 0}, ValueError),
        ({"lift": -1}, ValueError),
        ({"lift": 2.5}, TypeError),
        ({"seed": "x"}, TypeError),
        ({"lift": 3, "activation": "gelu"}, ValueError),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        Readout(DIM, **options)
    assert any(name in str(caught.value) for name in options)


# --- interruptions --------------------------------------------------------------------------------


class Failing(RandomFeatures):
    """Fails at some call."""

    calls_left = 10**9
    error: type[BaseException] = KeyboardInterrupt

    def forward(self, x: Tensor) -> Tensor:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise self.error("interrupted")
        return super().forward(x)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_lift_that_fails_at_once_leaves_no_trace(error: type[BaseException]) -> None:
    X, y = samples(0, 30)
    lift = Failing(DIM, 8)
    lift.error, lift.calls_left = error, 0
    readout = Readout(DIM, lift)
    before = state(readout)
    for task in (None, "a"):
        with pytest.raises(error):
            readout.learn(X, y, task)
        assert_same_state(readout.state_dict(), before)
    lift.calls_left = 10**9
    plain = Readout(DIM, 8).learn(X, y)
    assert torch.equal(readout.learn(X, y).predict(X), plain.predict(X))


@pytest.mark.parametrize("task", [None, "late"])
def test_an_interruption_in_the_middle_of_a_sum_is_refused(task: str | None) -> None:
    X, y = samples(0, 20_000, dtype=torch.float32)
    lift = Failing(DIM, 8)
    readout = Readout(DIM, lift).learn(X[:50], y[:50])
    saved = readout.state_dict()
    wanted = copy.deepcopy(readout).predict(X)
    lift.calls_left = 2
    with pytest.raises(KeyboardInterrupt):
        readout.learn(X, y, task)
    lift.calls_left = 10**9
    uses: list[Callable[[], object]] = [
        lambda: readout.predict(X),
        lambda: readout(X),
        lambda: readout.quota,
        lambda: readout.learn(X, y),
        lambda: readout.learn(X, y, "another"),
        readout.state_dict,
        readout.export,
        lambda: readout + readout,
        lambda: copy.deepcopy(readout).predict(X),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="interrupted in the middle of a sum"):
            use()
    if task:
        assert torch.equal(copy.deepcopy(readout).forget(task).predict(X), wanted)
    readout.load_state_dict(saved)
    assert torch.equal(readout.predict(X), wanted)
    assert readout.n_samples == 50


def test_an_interrupted_solve_leaves_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = samples(0, 30)
    readout = Readout(DIM, 8).learn(X, y)
    before = state(readout)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "cholesky_ex", interrupted)
        with pytest.raises(KeyboardInterrupt):
            readout.predict(X)
    assert_same_state(readout.state_dict(), before)


@pytest.mark.parametrize("answer", [torch.zeros(30, 3), torch.zeros(30), None, torch.zeros(2, 5)])
def test_a_lift_of_another_width_is_refused(answer: Any) -> None:
    class Wrong(nn.Module):
        out_features = 5

        def forward(self, x: Tensor) -> Any:
            return answer

    X, y = samples(0, 30)
    readout = Readout(DIM, Wrong())
    with pytest.raises(ValueError, match=r"expected features \[30, 5\]"):
        readout.learn(X, y)
    assert readout.n_samples == 0
