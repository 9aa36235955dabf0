"""Networks that learn real tasks one after another, with and without a shield.

With the data folder that CONCEPTORS_DATA names: MNIST, then Fashion-MNIST, in the same ten
outputs. Without: scikit-learn's digits, then the same digits turned by 90 degrees. The settings
were chosen on training images that are not used here; the test images are only looked at once.
"""

from __future__ import annotations

import copy
import gzip
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
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


# --- data -------------------------------------------------------------------------------------


def read_idx(path: Path) -> Tensor:
    """The array of an idx file: two zero bytes, type, dimensions, sizes, values."""
    raw = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3])
    return torch.from_numpy(values.reshape(shape).copy())


def images(folder: Path, part: str, count: int) -> tuple[Tensor, Tensor]:
    """The first images at half their size, `[count, 1, 14, 14]`, and their classes."""
    x = read_idx(folder / f"{part}-images-idx3-ubyte.gz")[:count, None].float() / 255
    y = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")[:count].long()
    return functional.avg_pool2d(x, 2), y


def data_folder() -> Path | None:
    folder = Path(os.environ.get("CONCEPTORS_DATA", ""))
    return folder if (folder / "mnist").is_dir() and (folder / "fashion-mnist").is_dir() else None


@cache
def two_tasks() -> tuple[Task, Task]:
    folder = data_folder()
    if folder is None:
        task = digits()
        turned = Task(task.x.rot90(1, (2, 3)), task.y, task.x_test.rot90(1, (2, 3)), task.y_test)
        return task, turned
    first, second = (
        Task(*images(folder / name, "train", 2000), *images(folder / name, "t10k", 2000))
        for name in ("mnist", "fashion-mnist")
    )
    return first, second


def digits() -> Task:
    """scikit-learn's digits, `[n, 1, 8, 8]`: 1300 to learn from, 497 to test."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = torch.tensor(x[order] / 16).float().reshape(-1, 1, 8, 8), torch.tensor(y[order])
    return Task(x[:1300], y[:1300], x[1300:], y[1300:])


# --- the user's own loop ----------------------------------------------------------------------


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
    found = []
    for protect in (True, False):
        own = copy.deepcopy(model)
        optimizer: Optimizer = AdamW(own.parameters(), lr=rates[0])
        if protect:
            # the body is meant to be nearly full, for all further learning to be in the head
            shield = Shield(own, aperture).remember(first.x)
            optimizer = shield.guard(AdamW(own.parameters(), lr=rates[1]))  # in little space
        learn(own, optimizer, second.x, second.y, epochs=epochs)
        kept, new = (accuracy(own, task.x_test, task.y_test) for task in (first, second))
        found.append(Result(learned, kept, new))
    return found[0], found[1]


def check(shielded: Result, plain: Result) -> None:
    """What the shield promises: the old task stays, the new one is learned nonetheless."""
    assert shielded.learned > 80
    assert plain.kept < shielded.learned - 35  # without it most is lost
    assert shielded.kept > shielded.learned - 6
    assert shielded.second > 65
    assert shielded.second > plain.second - 15


# --- a CNN and a Transformer with AdamW -------------------------------------------------------


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


class Transformer(nn.Module):
    """An encoder that reads an image two rows at a time."""

    def __init__(self, side: int, width: int = 64) -> None:
        super().__init__()
        count = side // 2
        self.embed = nn.Linear(2 * side, width)
        self.position = nn.Embedding(count, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(count * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        count = self.position.num_embeddings
        tokens = self.embed(x.flatten(1).unflatten(1, (count, -1)))  # [n, side / 2, width]
        tokens = tokens + self.position(torch.arange(count))
        found: Tensor = self.head(self.encoder(tokens).flatten(1))
        return found


def test_a_transformer_keeps_its_first_task() -> None:
    aperture = {"head": 3.0, "*": 100.0}
    check(*run(Transformer, aperture, rates=(3e-3, 1e-2), epochs=6))


# --- the paper's setting in miniature --------------------------------------------------------


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
    found = []
    for order in orders:
        learn(model, optimizer, x[:, order], task.y, epochs=epochs, loss=half_squares, batch=50)
        if kind != "plain":
            shield.remember(x[:, order])
        found.append([accuracy(model, x_test[:, other], task.y_test) for other in orders])
    return found


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
