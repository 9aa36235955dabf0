"""Networks that learn real tasks one after another, with and without a shield.

The tasks are scikit-learn's digits, then the same digits turned by 90 degrees, in the same ten
outputs.
"""

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


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),  # [n, 16, 8, 8]
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),  # [n, 32, 4, 4]
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4**2, 10),
    )


def test_a_cnn_keeps_its_first_task() -> None:
    """Most of it is lost without a shield. The body is nearly full: the head learns the second."""
    torch.manual_seed(0)
    first, second = two_tasks()
    start = cnn()
    learn(start, AdamW(start.parameters(), lr=3e-3), first.x, first.y, epochs=4)
    learned = accuracy(start, first.x_test, first.y_test)
    assert learned > 80
    accuracies = []
    for is_shielded in (True, False):
        model = copy.deepcopy(start)
        optimizer = AdamW(model.parameters(), lr=1e-2 if is_shielded else 3e-3)
        if is_shielded:
            shield = Shield(model, {"8": 4.0, "*": 300.0}).remember(first.x)
            shield.guard(optimizer)
        learn(model, optimizer, second.x, second.y, epochs=4)
        accuracies.append([accuracy(model, task.x_test, task.y_test) for task in (first, second)])
    (kept, new), (lost, plain) = accuracies
    assert lost < learned - 35
    assert kept > learned - 6
    assert new > max(65, plain - 15)


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
