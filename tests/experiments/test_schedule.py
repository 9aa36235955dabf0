"""Rates by validation loss: each seed's own, and the weights of the lowest come back."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from conceptors.experiments.methods.schedule import Schedule
from experiments.learners import CPU, learner


class Two(nn.Module):
    """Two seeds of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, 1))


def schedule(model: nn.Module, rate: float = 0.01, **settings: Any) -> Schedule:
    given: dict[str, Any] = {
        "patience": 2,
        "rate_factor": 2.0,
        "least_rate": 0.004,
        "stop_above": 0.0,
    }
    given |= {"judged": "loss", **settings}
    return Schedule(list(model.parameters()), SimpleNamespace(**given), rate, 2, CPU)


def test_a_seed_slows_down_and_ends_by_its_own_loss() -> None:
    model = Two()
    made = schedule(model)
    memory = made.pace.data_ptr()
    losses = [(3.0, 3.0), (2.0, 4.0), (2.0, 3.0), (1.0, math.nan), (5.0, 2.0), (5.0, 5.0)]
    wanted = [(1, 1), (1, 1), (1, 0.5), (1, 0.5), (1, 0.5), (0.5, 0.5)]
    for step, (loss, pace) in enumerate(zip(losses, wanted)):
        model.weight.data.fill_(step)
        made.check(torch.zeros(2), torch.tensor(loss), math.inf)
        assert tuple(made.pace.tolist()) == pace, step
    made.check(torch.zeros(2), torch.tensor([5.0, 5.0]), math.inf)
    assert made.going() == [True, False]  # 0.01 / 4 is less than 0.004
    assert made.pace.data_ptr() == memory  # recordings read it there
    model.weight.grad = torch.ones(2, 1)
    made.apply()
    assert model.weight.grad.flatten().tolist() == [0.5, 0.0]
    made.finish()
    assert model.weight.flatten().tolist() == [3.0, 4.0]  # where the loss was lowest


def test_seeds_are_judged_by_accuracy() -> None:
    """Whatever the loss is, as long as it is a number."""
    model = Two()
    made = schedule(model, judged="accuracy")
    looks = [
        ((50.0, 50.0), (1.0, math.nan)),
        ((60.0, 40.0), (2.0, 1.0)),
        ((60.0, 30.0), (0.5, 0.5)),
    ]
    for step, (accuracy, loss) in enumerate(looks):
        model.weight.data.fill_(step)
        made.check(torch.tensor(accuracy), torch.tensor(loss), math.inf)
    assert made.pace.tolist() == [1, 1]
    made.check(torch.tensor([55.0, 35.0]), torch.tensor([0.1, 0.1]), math.inf)
    assert made.pace.tolist() == [0.5, 0.5]
    assert not bool(made.never_learned().any())
    made.finish()
    assert model.weight.flatten().tolist() == [1.0, 1.0]  # the highest of a loss that is a number


def test_without_patience_nothing_happens() -> None:
    model = Two()
    made = schedule(model, patience=0)
    made.check(torch.zeros(2), torch.tensor([9.0, math.nan]), math.inf)
    model.weight.data.fill_(7)
    made.finish()
    assert made.is_even
    assert made.going() == [True, True]
    assert model.weight.flatten().tolist() == [7.0, 7.0]


@pytest.mark.parametrize("method", ["sgd", "cab"])
def test_seeds_have_their_own_rates(method: str) -> None:
    settings: dict[str, Any] = {
        "patience": 1,
        "least_rate": 0.3,
        "rate": 2.0,
        "check_every": 2,
        "steps": 80,
        "loss": "softmax",
    }
    seeds = list(range(5))
    together = learner(method, seeds, **settings)
    histories = [together.learn(k) for k in range(2)]
    ends = [history["step"][-1] for history in histories[0]]
    assert len(set(ends)) > 1
    assert max(ends) < 80
    for i, seed in enumerate(seeds):
        alone = learner(method, [seed], **settings)
        for k in range(2):
            (history,) = alone.learn(k)
            assert histories[k][i]["step"] == history["step"]
        for ours, theirs in zip(together.model.parameters(), alone.model.parameters()):
            torch.testing.assert_close(ours[i : i + 1], theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("sgd", {"patience": 6, "momentum": 0.9}, "patience is for plain SGD, got momentum=0.9"),
        ("cab", {"patience": 6, "increment_decay": 0.1}, "does not go with increment_decay"),
        ("sgd", {"rate_factor": 1.0}, "rate_factor must be above 1, got 1.0"),
        ("sgd", {"dropout": 1.0}, r"dropout must be in \[0, 1\[, got 1.0"),
        ("sgd", {"precision": "half"}, "precision must be one of"),
        ("cab", {"project": "outputs"}, "project must be one of"),
    ],
)
def test_what_cannot_be_is_refused(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learner(method, [0], **settings)
