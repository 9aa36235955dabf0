"""The sequences of the untuned suite, and what is aimed at on each."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.bench.models import ConvNet, Growing, mlp
from conceptors.bench.row import UnfitError
from conceptors.bench.untuned.sequence import Lesson, Part, Sequence
from conceptors.bench.untuned.text import clinc
from conceptors.experiments.scenarios.data import DataUnavailableError, load

PAIRS = [[2 * i, 2 * i + 1] for i in range(5)]
HALVES = [list(range(5)), list(range(5, 10))]
SINGLE = [[i] for i in range(10)]
_IMAGES = 10_000  # of Fashion-MNIST, where networks are convolutional
_HELD = 5_000  # images for validation, the first


# --- data ---------------------------------------------------------------------------------


@cache
def digits(scale: str) -> tuple[Part, Part, Part]:
    """scikit-learn's 8 x 8 digits: training, validation and test rows."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UnfitError(
            "the digits need scikit-learn: pip install 'conceptors[sklearn]'"
        ) from None
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    x, y, number = x.float(), y.long(), torch.arange(len(x))
    test, validation = number % 4 == 0, number % 8 == 1
    train = ~(test | validation)
    if scale == "0-1":
        x = x / 16
    if scale == "z":
        x = (x - x[train].mean(0)) / x[train].std(0).clamp_min(0.1)
    return (x[train], y[train]), (x[validation], y[validation]), (x[test], y[test])


@cache
def pictures(name: str, count: int | None, flat: bool) -> tuple[Part, Part, Part]:
    """MNIST or Fashion-MNIST in [0, 1]: training, validation and test images."""
    try:
        found = load(name, progress=False)
    except DataUnavailableError as error:
        raise UnfitError(str(error)) from error

    def shaped(x: Tensor) -> Tensor:
        return x.flatten(1).float() / 255 if flat else x[:, None].float() / 255

    x, y = shaped(found.train_x), found.train_y.long()
    last = None if count is None else _HELD + count
    return (
        (x[_HELD:last], y[_HELD:last]),
        (x[:_HELD], y[:_HELD]),
        (shaped(found.test_x), found.test_y.long()),
    )


def by_class(parts: tuple[Part, Part, Part], groups: list[list[int]], heads: bool) -> list[Lesson]:
    """A task for each group of classes."""
    found = []
    for group in groups:
        classes = torch.tensor(group)
        own = ((x[torch.isin(y, classes)], y[torch.isin(y, classes)]) for x, y in parts)
        found.append(Lesson(*own, outputs=classes if heads else None))
    return found


def permuted(parts: tuple[Part, Part, Part], count: int) -> list[Lesson]:
    """The same task with its inputs in another order each time, the first in their own."""
    found = []
    for number in range(count):
        draw = torch.Generator().manual_seed(number)
        width = parts[0][0].shape[1]
        order = torch.randperm(width, generator=draw) if number else torch.arange(width)
        found.append(Lesson(*((x[:, order], y) for x, y in parts)))
    return found


def two_sets() -> list[Lesson]:
    """MNIST, then Fashion-MNIST, each with its own ten outputs."""
    first, second = (pictures(name, 6000, False) for name in ("mnist", "fashion-mnist"))
    moved = ((x, y + 10) for x, y in second)
    return [Lesson(*first, outputs=torch.arange(10)), Lesson(*moved, outputs=torch.arange(10, 20))]


def subspaces() -> list[Lesson]:
    """A smooth function of five numbers, in another five of twenty dimensions each time."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for _ in range(4):
        basis = torch.linalg.qr(torch.randn(20, 5, generator=draw)).Q
        weights = torch.randn(5, 2, generator=draw)

        def part(count: int, basis: Tensor = basis, weights: Tensor = weights) -> Part:
            z = torch.randn(count, 5, generator=draw)
            return 2 * z @ basis.mT, torch.sin(z @ weights).sum(1, keepdim=True)

        found.append(Lesson(part(800), part(150), part(300)))
    return found


def intervals() -> list[Lesson]:
    """One function of one number, learned on a quarter of its range after the other."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for number in range(4):

        def part(count: int, low: float = number - 2.0) -> Part:
            x = low + torch.rand(count, 1, generator=draw)
            return x, torch.sin(3 * x) + 0.5 * x

        found.append(Lesson(part(256), part(64), part(128)))
    return found


# --- the suite ----------------------------------------------------------------------------


def _digits(
    name: str, target: float, groups: list[list[int]], scale: str = "0-1", **more: Any
) -> Sequence:
    lessons = lambda: by_class(digits(scale), groups, heads=False)  # noqa: E731
    return Sequence(name, target, lessons, more.pop("model", partial(mlp, 64, 128, 10)), **more)


def _mnist(name: str, target: float, groups: list[list[int]], epochs: int) -> Sequence:
    lessons = lambda: by_class(pictures("mnist", None, True), groups, heads=False)  # noqa: E731
    return Sequence(name, target, lessons, partial(mlp, 784, 800, 10), epochs, batch=64)


def _fashion(name: str, target: float, heads: bool) -> Sequence:
    lessons = lambda: by_class(pictures("fashion-mnist", _IMAGES, False), PAIRS, heads)  # noqa: E731
    return Sequence(name, target, lessons, ConvNet, epochs=12, batch=64)


DIGITS = [
    _digits("digits 5x2, pixels 0-1", 92.0, PAIRS),
    _digits("digits 5x2, pixels 0-16", 93.0, PAIRS, "0-16"),
    _digits("digits 5x2, z-scored", 95.0, PAIRS, "z"),
    _digits("digits 2x5", 93.0, HALVES),
    _digits("digits, one class a task", 88.0, SINGLE),
    _digits("digits 5x2, growing head", 91.0, PAIRS, model=Growing, grows=True),
    Sequence(
        "digits permuted x5",
        96.0,
        lambda: permuted(digits("0-1"), 5),
        partial(mlp, 64, 128, 10),
    ),
]
REGRESSION = [
    Sequence(
        "regression, four subspaces",
        84.0,
        subspaces,
        partial(mlp, 20, 128, 128, 1),
        epochs=60,
        regression=True,
    ),
    Sequence(
        "regression, 1-D by intervals",
        99.0,
        intervals,
        partial(mlp, 1, 128, 128, 1, activation=nn.Tanh),
        epochs=150,
        regression=True,
    ),
]
LARGE = [
    _mnist("MNIST 2x5", 94.5, HALVES, epochs=5),
    _mnist("MNIST 5x2", 90.0, PAIRS, epochs=2),
    _mnist("MNIST 10x1", 87.0, SINGLE, epochs=2),
    _fashion("Fashion CNN 5x2, one head", 65.0, heads=False),
    _fashion("Fashion CNN 5x2, heads", 98.5, heads=True),
    Sequence(
        "MNIST permuted x10",
        94.0,
        lambda: permuted(pictures("mnist", None, True), 10),
        partial(mlp, 784, 100, 10),
        epochs=2,
        batch=64,
    ),
    Sequence(
        "MNIST, then Fashion, BatchNorm",
        86.0,
        two_sets,
        partial(ConvNet, 20, True),
        epochs=5,
        batch=64,
    ),
    clinc("CLINC150, MiniLM, one head", 93.0, heads=False),
    clinc("CLINC150, MiniLM, domain known", 97.0, heads=True),
]
ALL = {sequence.name: sequence for sequence in [*DIGITS, *REGRESSION, *LARGE]}
