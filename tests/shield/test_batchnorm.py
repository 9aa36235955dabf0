"""BatchNorm keeps the statistics of remembered tasks, and its flag."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from shield.common import quiet, samples, train


def with_batchnorm() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(10, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 3)
    ).double()


def test_batchnorm_keeps_the_statistics_of_remembered_tasks() -> None:
    for policy, moves in {"freeze": False, "follow": True}.items():
        model = with_batchnorm()
        shield = quiet(model, 1e4, hard=True, batchnorm=policy)
        optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=1e-3))
        train(model, optimizer, samples(), steps=5)  # statistics follow the first task
        mean = model[1].running_mean.clone()
        assert float(mean.abs().max()) > 0.01
        shield.remember(samples())
        model.eval()
        old = model(samples()).detach()
        model.train()
        train(model, optimizer, samples(2), steps=5)
        assert model[1].training
        assert torch.equal(mean, model[1].running_mean) != moves
        model.eval()
        drift = float((model(samples()).detach() - old).abs().max() / old.abs().max())
        assert (drift > 1e-3) == moves
        if not moves:
            assert drift < 1e-10


def test_batchnorm_recovers_its_flag_after_an_error() -> None:
    model = with_batchnorm()
    shield = quiet(model).remember(samples())
    model.train()
    with pytest.raises((RuntimeError, ValueError)):
        model[1](torch.zeros(2, 7).double())
    assert model[1].training
    shield.detach()


def test_batchnorm_keeps_its_flag_where_another_hook_fails_first() -> None:
    model = with_batchnorm()

    def refuse(_layer: nn.Module, args: Any) -> None:
        if len(args[0]) == 1:
            raise RuntimeError("one row")

    model[1].register_forward_pre_hook(refuse)
    quiet(model).remember(samples())
    model.train()
    model(samples())
    model.eval()
    with pytest.raises(RuntimeError, match="one row"):
        model(samples()[:1])
    assert not model[1].training
