"""A network learns permutations of scikit-learn's digits one after another, as in the paper."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Optimizer

from conceptors import Shield

pytestmark = pytest.mark.filterwarnings("ignore::conceptors.shield.ShieldFullWarning")


class Task(NamedTuple):
    x: Tensor  # [n, 64], in [0, 1]
    y: Tensor  # [n]
    x_test: Tensor
    y_test: Tensor


@cache
def digits() -> Task:
    """Digits `[n, 64]`, 1300 to learn from and 497 to test."""
    x, y = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    pixels, labels = torch.tensor(x[order] / 16).float(), torch.tensor(y[order])
    return Task(pixels[:1300], labels[:1300], pixels[1300:], labels[1300:])


def learn(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, epochs: int) -> None:
    """Minimise half the squared error, summed over the batch as the paper's authors did."""
    model.train()
    targets = functional.one_hot(y, 10)
    for _ in range(epochs):
        for chosen in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            (0.5 * (model(x[chosen]) - targets[chosen]).square().sum()).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    return 100 * float((model(x).argmax(1) == y).float().mean())


def permuted(kind: str, seed: int = 0) -> list[list[float]]:
    """Three tasks of permuted pixels, sigmoid units, plain SGD: accuracy on all after each."""
    torch.manual_seed(seed)
    task = digits()
    x, x_test, dim = task.x, task.x_test, 64
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
        learn(model, optimizer, x[:, order], task.y, epochs)
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
