"""Gradients that were clipped before they are projected: most of them is what old tasks claim."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from conceptors import Shield
from conceptors.shield.step.clipped import warn_if_clipped

SAID = "all gradients together have a length of 0.5"


def train(
    steps: int,
    *,
    loop: bool = False,
    between: bool = False,
    clip: float = 0.5,
    value: bool = False,
    **options: Any,
) -> None:
    """The second of two tasks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 3))
    shield = Shield(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 12), torch.randint(0, 3, (64,))

    def clipped() -> None:
        how = nn.utils.clip_grad_value_ if value else nn.utils.clip_grad_norm_
        how(model.parameters(), clip)

    shield.guard(optimizer, between=clipped if between else None)
    shield.remember(x)
    for _ in range(steps):
        optimizer.zero_grad()
        (20 * functional.cross_entropy(model(torch.randn(64, 12)), y)).backward()
        if loop:
            clipped()
        optimizer.step()


def test_clipping_in_the_loop_is_told_once() -> None:
    with pytest.warns(UserWarning, match=SAID) as told:
        train(200, loop=True, aperture=2.0)
    assert len([w for w in told if SAID in str(w.message)]) == 1
    assert "between=" in str(told[0].message)


def test_clipping_by_value_is_told_too() -> None:
    said = r"no number of any gradient is larger than 0\.01 .*clip_grad_value_\(.*, 0\.01\)\)"
    with pytest.warns(UserWarning, match=said) as told:
        train(200, loop=True, value=True, clip=0.01, aperture=2.0)
    assert len(told) == 1


@pytest.mark.filterwarnings("error:all gradients together", "error:no number of any gradient")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"between": True},
        {"between": True, "value": True, "clip": 0.01},
        {"loop": True, "value": True, "clip": 1e6},
        {"loop": True, "clip": 1e6},  # longer than all of them
        {"loop": True, "project": "inputs"},  # which are projected by then
    ],
    ids=str,
)
def test_nothing_is_said_of_other_gradients(options: dict[str, Any]) -> None:
    train(40, aperture=2.0, **options)


@pytest.mark.filterwarnings("error:all gradients together")
def test_a_few_steps_say_nothing() -> None:
    train(15, loop=True, aperture=2.0)


SAME, OTHER = [0.6, 0.8], [0.8, 0.6]  # of length 1 together


@pytest.mark.parametrize(
    "lengths",
    [
        [],
        [SAME, OTHER, SAME],
        [[0.0, 0.0]] * 5,
        [SAME, OTHER, SAME, [0.6, 0.7]],
        [SAME] * 4,  # nothing moves, and neither does the gradient
        [SAME, OTHER, SAME, [1.0]],
        [[float("nan"), 1.0]] * 4,
    ],
    ids=str,
)
def test_lengths_that_tell_nothing(lengths: list[list[float]]) -> None:
    with warnings.catch_warnings(record=True) as told:
        warn_if_clipped(lengths)
    assert not told


def test_only_the_last_lengths_count() -> None:
    with pytest.warns(UserWarning, match="have a length of 1 "):
        warn_if_clipped([[9.0, 0.0], SAME, OTHER, [0.6 * (1 - 1e-6), 0.8], OTHER])


def test_before_anything_is_remembered_there_is_nothing_to_say() -> None:
    model = nn.Linear(5, 3)
    optimizer = Shield(model).guard(torch.optim.SGD(model.parameters(), lr=0.01))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            model.zero_grad()
            model(torch.randn(8, 5)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            optimizer.step()
