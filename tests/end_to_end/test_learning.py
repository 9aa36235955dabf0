"""Networks that learn real tasks one after another, with and without a shield.

The tasks are scikit-learn's digits, then the same digits turned by 90 degrees, in the same ten
outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, AdamW, Optimizer

from conceptors import Shield

# large apertures hold the bodies still on purpose
pytestmark = pytest.mark.filterwarnings("ignore::conceptors.shield.ShieldFullWarning")

Loss = Callable[[Tensor, Tensor], Tensor]


class Task(NamedTuple):
    x: Tensor  # [n, 1, side, side], in [0, 1]
    y: Tensor  # [n]
    x_test: Tensor
    y_test: Tensor


class Result(NamedTuple):
    """Test accuracies in percent."""

    learned: float  # the first task, when it was learned
    kept: float  # the first task, after the second
    second: float  # the second task, when it was learned


@cache
def two_tasks() -> tuple[Task, Task]:
    """Digits `[n, 1, 8, 8]`, 1300 to learn from and 497 to test, then the same turned."""
    x, y = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = torch.tensor(x[order] / 16).float().reshape(-1, 1, 8, 8), torch.tensor(y[order])
    tasks = [Task(z[:1300], y[:1300], z[1300:], y[1300:]) for z in (x, x.rot90(1, (2, 3)))]
    return tasks[0], tasks[1]


def learn(
    model: nn.Module,
    optimizer: Optimizer,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int,
    loss: Loss = functional.cross_entropy,
    batch: int = 64,
) -> None:
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss(model(x[chosen]), y[chosen]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return 100 * float((model(x).argmax(1) == y).float().mean())


def run(
    build: Callable[[int], nn.Module],
    aperture: dict[str, float],
    *,
    rates: tuple[float, float],
    epochs: int,
) -> tuple[Result, Result]:
    """Two tasks with AdamW: with a shield, and going on without one after the first."""
    torch.manual_seed(0)
    first, second = two_tasks()
    model = build(first.x.shape[-1])
    learn(model, AdamW(model.parameters(), lr=rates[0]), first.x, first.y, epochs=epochs)
    learned = accuracy(model, first.x_test, first.y_test)
    results = []
    for is_shielded in (True, False):
        network = copy.deepcopy(model)
        optimizer: Optimizer = AdamW(network.parameters(), lr=rates[0])
        if is_shielded:
            # the body is meant to be nearly full, for all further learning to be in the head
            shield = Shield(network, aperture).remember(first.x)
            optimizer = shield.guard(AdamW(network.parameters(), lr=rates[1]))
        learn(network, optimizer, second.x, second.y, epochs=epochs)
        kept, new = (accuracy(network, task.x_test, task.y_test) for task in (first, second))
        results.append(Result(learned, kept, new))
    return results[0], results[1]


def check(shielded: Result, plain: Result) -> None:
    """What the shield promises: the old task stays, the new one is learned nonetheless."""
    assert shielded.learned > 80
    assert plain.kept < shielded.learned - 35  # without it most is lost
    assert shielded.kept > shielded.learned - 6
    assert shielded.second > 65
    assert shielded.second > plain.second - 15


def cnn(side: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),  # [n, 16, side, side]
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),  # [n, 32, side / 2, side / 2]
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (side // 2) ** 2, 10),
    )


def test_a_cnn_keeps_its_first_task() -> None:
    check(*run(cnn, {"8": 4.0, "*": 300.0}, rates=(3e-3, 1e-2), epochs=4))


def half_squares(output: Tensor, y: Tensor) -> Tensor:
    """Half the squared error, summed over the batch as the paper's authors did."""
    return 0.5 * (output - functional.one_hot(y, 10)).square().sum()


def permuted(kind: str, seed: int = 0) -> list[list[float]]:
    """Three tasks of permuted pixels, sigmoid units, plain SGD: accuracy on all after each."""
    torch.manual_seed(seed)
    task = two_tasks()[0]
    x, x_test = task.x.flatten(1), task.x_test.flatten(1)
    dim = x.shape[1]
    model = nn.Sequential(nn.Linear(dim, 100), nn.Sigmoid(), nn.Linear(100, 10), nn.Sigmoid())
    for parameter in model.parameters():
        nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)
    optimizer: Optimizer = SGD(model.parameters(), lr=0.02)
    epochs = 45_000 // len(x)
    if kind != "plain":
        shield = Shield(model, aperture=3.0, hard=kind == "hard", increment_decay=0.001)
        optimizer = shield.guard(optimizer)
    orders = [torch.arange(dim), torch.randperm(dim), torch.randperm(dim)]
    rows = []
    for order in orders:
        learn(model, optimizer, x[:, order], task.y, epochs=epochs, loss=half_squares, batch=50)
        if kind != "plain":
            shield.remember(x[:, order])
        rows.append([accuracy(model, x_test[:, other], task.y_test) for other in orders])
    return rows


# its apertures are fixed, and with sigmoid units all inputs of the second layer are alike
def test_the_paper_in_miniature() -> None:
    plain, soft, hard = (permuted(kind) for kind in ("plain", "soft", "hard"))
    for shielded in (soft, hard):
        learned, kept = shielded[0][0], shielded[2][0]
        assert learned > 72
        assert kept > learned - 15
        assert kept > plain[2][0] + 10
        assert min(shielded[2]) > 50  # every task is still there
        assert sum(shielded[2]) > sum(plain[2]) + 12  # over all three tasks
