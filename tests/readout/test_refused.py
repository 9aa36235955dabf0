"""Bad input: one clear line, and nothing changed, not even a bit of the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import Readout
from helpers import normal
from readout.common import DIM, assert_same_state, samples, state

BAD: dict[str, tuple[Callable[[Tensor, Tensor], tuple[Any, Any]], str]] = {
    "NaN": (lambda X, y: (X.clone().fill_(torch.nan), y), "NaN or infinite"),
    "infinite": (lambda X, y: (X / 0, y), "NaN or infinite"),
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
    "truth": (lambda X, y: (X, y > 0), "integers .* or floats"),
    "complex": (lambda X, y: (X, y.to(torch.complex64)), "integers .* or floats"),
    "no tensor": (lambda X, y: (X, y.tolist()), "integers .* or floats"),
    "labels in columns": (lambda X, y: (X, y[:, None]), "multiple labels as floats"),
    "numbers": (lambda X, y: (X, y.float()), "labels were learned so far"),
    "NaN targets": (lambda X, y: (X, y.float() * torch.nan), "labels were learned|NaN"),
}


@pytest.mark.parametrize("lift", [0, 9])
@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("name", BAD)
def test_bad_samples_change_nothing(name: str, new: bool, lift: int) -> None:
    change, message = BAD[name]
    X, y = samples(0, 20, dtype=torch.float32)
    readout = Readout(DIM, lift)
    if not new:
        readout.learn(X, y).predict(X)
    elif name == "numbers":
        pytest.skip("fine if nothing was learned")
    before = state(readout)
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        readout.learn(*change(X, y))
    assert "\n" not in str(caught.value)
    assert_same_state(readout.state_dict(), before)
    assert readout.learn(X, y).n_samples == (20 if new else 40)


def test_numbers_keep_their_columns() -> None:
    readout = Readout(DIM).learn(normal(0, 9, DIM), normal(1, 9, 3))
    for wrong in (normal(1, 9, 2), normal(1, 9), torch.zeros(9, dtype=torch.long)):
        with pytest.raises(ValueError, match="so far"):
            readout.learn(normal(0, 9, DIM), wrong)
    with pytest.raises(RuntimeError, match="numbers were learned, not classes"):
        _ = readout.counts


def test_a_readout_that_learned_nothing_has_no_answers() -> None:
    readout, X = Readout(DIM, 5), normal(0, 3, DIM)
    asks: list[Callable[[], object]] = [
        lambda: readout(X),
        lambda: readout.predict(X),
        lambda: readout.quota,
        readout.export,
    ]
    for ask in asks:
        with pytest.raises(RuntimeError, match=r"call learn\(features, targets\) first"):
            ask()
    assert (readout.n_samples, readout.counts.tolist()) == (0, [])
    readout.calibrate(X)
    with pytest.raises(RuntimeError, match="the lift is calibrated already"):
        readout.calibrate(X)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"regularization": 0.0}, ValueError),
        ({"regularization": "best"}, TypeError),
        ({"classes": 0}, ValueError),
        ({"lift": -1}, ValueError),
        ({"lift": 2.5}, TypeError),
        ({"lift": 3, "activation": "gelu"}, ValueError),
        ({"scores": "probability"}, ValueError),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        Readout(DIM, **options)
    assert any(name in str(caught.value) for name in options)
