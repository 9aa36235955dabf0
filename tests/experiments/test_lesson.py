"""Which weights a task ends with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from conceptors.experiments.methods.lesson import RunningMean
from helpers import normal


def mean_of(keep: float, weights: list[torch.Tensor]) -> torch.Tensor:
    """What a task of these weights, step by step, ends with."""
    parameter = nn.Parameter(torch.zeros(2, 3).double())
    mean = RunningMean([parameter], keep)
    for step, value in enumerate(weights, 1):
        parameter.data.copy_(value)
        if step % mean.every == 0:
            mean.add(torch.tensor([True, step < 50]))  # the second seed stops early
    mean.use()
    return parameter.detach()


@pytest.mark.parametrize("keep", [0.5, 0.9])
def test_the_running_mean_is_its_definition(keep: float) -> None:
    weights = [normal(k, 2, 3) for k in range(80)]
    wanted = torch.zeros(2, 3).double()
    for step, value in enumerate(weights, 1):
        share = max(1 / step, 1 - keep) * torch.tensor([[1.0], [float(step < 50)]]).double()
        wanted = wanted + share * (value - wanted)
    torch.testing.assert_close(mean_of(keep, weights), wanted, rtol=0, atol=1e-6)


def test_a_long_mean_of_every_tenth_step_is_that_of_all() -> None:
    """Of weights that move steadily, as those of steps that follow each other do."""
    keep = 0.998
    weights = [torch.full((2, 3), k / 1000).double() for k in range(1000)]
    own = RunningMean([], keep)
    assert own.every == 10
    found = mean_of(keep, weights)[0]
    wanted = torch.zeros(3).double()
    for step, value in enumerate(weights, 1):
        wanted += max(1 / step, 1 - keep) * (value[0] - wanted)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.01)


def test_a_task_of_few_steps_ends_with_its_last_weights() -> None:
    weights = [torch.full((2, 3), 1.0 + k).double() for k in range(3)]
    torch.testing.assert_close(mean_of(0.9995, weights), weights[-1])


def test_a_seed_that_stopped_before_the_first_of_them_keeps_its_weights() -> None:
    parameter = nn.Parameter(torch.zeros(2, 3).double())
    mean = RunningMean([parameter], 0.999)
    for step in range(1, 41):
        parameter.data.copy_(torch.tensor([[10.0], [float(step)]]).double().expand(2, 3))
        if step % mean.every == 0:
            mean.add(torch.tensor([False, True]))
    mean.use()
    torch.testing.assert_close(parameter.detach()[:, 0], torch.tensor([10.0, 30.0]).double())
