"""Hard shields protect two tasks whose inputs are nearly parallel."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

from conceptors import Shield
from helpers import drift, normal
from shield.common import train

NETWORKS: dict[str, Any] = {
    "linear": lambda: [nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 5)],
    "grouped": lambda: [
        *(nn.Unflatten(1, (8, 3)), nn.Conv1d(8, 16, 3, groups=2), nn.Tanh(), nn.Flatten()),
        nn.Linear(16, 5),
    ],
}
OPTIMIZERS: list[Any] = [partial(optim.SGD, lr=0.05), partial(optim.Adam, lr=0.005)]


@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rank", [None, 10])
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("make", OPTIMIZERS, ids=["sgd", "adam"])
def test_two_nearly_parallel_tasks_are_both_protected(
    make: Any, kind: str, rank: int | None, dtype: torch.dtype, angle: float
) -> None:
    first = normal(0, 3, 24)
    tasks = [x.to(dtype) for x in (first, first + angle * normal(1, 3, 24))]
    new = (3 * normal(2, 64, 24)).to(dtype)
    torch.manual_seed(0)
    model = nn.Sequential(*NETWORKS[kind]()).to(dtype)
    shield = Shield(model, 1e4, hard=True, rank=rank)
    optimizer = shield.guard(make(model.parameters()))
    for rows in tasks:
        shield.remember(rows)
    for conceptor in shield.conceptors().values():
        values = conceptor.singular_values
        assert torch.equal(values, (torch.arange(conceptor.dim) < 6).to(values).expand_as(values))
    before = [model(x).detach() for x in (*tasks, new)]
    train(model, optimizer, new, 40)
    drifts = [drift(model(x), y) for x, y in zip((*tasks, new), before)]
    assert max(drifts[:2]) <= (1e-6 if dtype == torch.float32 else 1e-10), drifts
    assert drifts[2] > 0.1
