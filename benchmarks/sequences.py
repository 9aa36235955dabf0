"""Sequences of tasks that people try first, each with a small network, for `benchmarks.untuned`.

`QUICK` are those of which a run takes up to 40 seconds on one CPU core.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from conceptors.scenarios import Split, build

Part = tuple[Tensor, Tensor]  # inputs and targets
ALL_OUTPUTS = torch.ones(1, dtype=torch.bool)
PAIRS, HALVES = [[2 * i, 2 * i + 1] for i in range(5)], [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


# --- networks -----------------------------------------------------------------------------


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def conv_net(classes: int = 10, norm: bool = False) -> nn.Sequential:
    """Two convolutions and two linear layers for 28 x 28 pixels."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 28, 28))]
    for inputs, outputs in ((1, 16), (16, 32)):
        layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
        layers += [nn.BatchNorm2d(outputs)] if norm else []
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, classes)]
    return nn.Sequential(*layers, *head)


class Reader(nn.Module):
    """A recurrent network that reads `size` numbers at a time."""

    def __init__(self, kind: Callable[..., nn.RNNBase], size: int = 8, outputs: int = 10) -> None:
        super().__init__()
        self.body, self.head = kind(size, 64, batch_first=True), nn.Linear(64, outputs)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.body(x.unflatten(1, (-1, self.size)))
        result: Tensor = self.head(states[:, -1])
        return result


class Transformer(nn.Module):
    """Two layers of attention over words, or over `size` numbers at a time."""

    def __init__(self, length: int, outputs: int, words: int = 0, size: int = 0) -> None:
        super().__init__()
        self.size, self.place = size, nn.Embedding(length, 64)
        self.embed = nn.Linear(size, 64) if size else nn.Embedding(words, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.unflatten(1, (-1, self.size)) if self.size else x)
        x = x + self.place(torch.arange(x.shape[1], device=x.device))
        result: Tensor = self.head(self.body(x).mean(1))
        return result


class Residual(nn.Module):
    """Two convolutions with BatchNorm, and a path around them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.skip = nn.Conv2d(inputs, outputs, 1, stride=2)
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.skip(x) + self.body(x))


def res_net(channels: int, pixels: int, outputs: int) -> nn.Sequential:
    """Three residual blocks for square images."""
    blocks = [Residual(*sizes) for sizes in ((channels, 16), (16, 32), (32, 64))]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, outputs)]
    return nn.Sequential(nn.Unflatten(1, (channels, pixels, pixels)), *blocks, *pool)


# --- tasks --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Training, validation and test data, and which outputs of the network belong to the task."""

    train: Part
    validation: Part
    test: Part
    head: Tensor = field(default=ALL_OUTPUTS, kw_only=True)

    def to(self, device: torch.device) -> Task:
        parts = (self.train, self.validation, self.test)
        return Task(*((x.to(device), y.to(device)) for x, y in parts), head=self.head.to(device))

    def samples(self, part: Part) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets, and which outputs belong to each sample."""
        return *part, self.head.expand(len(part[1]), -1)


def training_samples(tasks: list[Task]) -> list[Tensor]:
    return [torch.cat(parts) for parts in zip(*(task.samples(task.train) for task in tasks))]


def separate_heads(tasks: list[Task]) -> list[Task]:
    """Give each task its own outputs: those of its classes, or one for regression."""
    if tasks[0].train[1].is_floating_point():
        heads = list(torch.eye(len(tasks), dtype=torch.bool))
    else:
        labels = [task.train[1].unique() for task in tasks]
        heads = [torch.isin(torch.arange(int(torch.cat(labels).max()) + 1), y) for y in labels]
    return [replace(task, head=head) for task, head in zip(tasks, heads)]


@cache
def digits(scale: str) -> tuple[Part, Part, Part]:
    """scikit-learn's 8 x 8 digits: training, validation and test rows."""
    from sklearn.datasets import load_digits

    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    x, y, number = x.float(), y.long(), torch.arange(len(x))
    test, validation = number % 4 == 0, number % 8 == 1
    training = ~(test | validation)
    if scale == "0-1":
        x = x / 16
    if scale == "z":
        x = (x - x[training].mean(0)) / x[training].std(0).clamp_min(0.1)
    return (x[training], y[training]), (x[validation], y[validation]), (x[test], y[test])


def digit_tasks(groups: list[list[int]], scale: str = "0-1") -> list[Task]:
    """A task for each group of classes."""
    tasks = []
    for group in groups:
        masks = [(x, y, torch.isin(y, torch.tensor(group))) for x, y in digits(scale)]
        tasks.append(Task(*((x[mask], y[mask]) for x, y, mask in masks)))
    return tasks


def permuted_digits(count: int) -> list[Task]:
    """The digits with their pixels in another order each time."""
    orders = [torch.arange(64)]
    orders += [
        torch.randperm(64, generator=torch.Generator().manual_seed(i)) for i in range(1, count)
    ]
    return [Task(*((x[:, order], y) for x, y in digits("0-1"))) for order in orders]


@lru_cache(maxsize=1)
def scenario_tasks(name: str, first: int | None = None, **more: Any) -> list[Task]:
    """The (first) tasks of a scenario of the package, whole in memory."""

    def part(split: Split) -> Part:
        x, y = split.take(torch.arange(len(split)))
        return x.flatten(1), y

    tasks = build(name, 0, **more).tasks[:first]
    return [Task(part(task.train), part(task.validation), part(task.test)) for task in tasks]


def two_sets() -> list[Task]:
    """MNIST, then Fashion-MNIST, with twenty classes together."""
    mnist, fashion = (
        scenario_tasks(f"disjoint-{name}", tasks=1, limit=6_000)[0] for name in ("mnist", "fashion")
    )
    parts = (fashion.train, fashion.validation, fashion.test)
    return [mnist, Task(*((x, y + 10) for x, y in parts))]


@cache
def sentences(domains: int) -> list[Task]:
    """CLINC150: a task has 15 intents; a sentence is twelve numbers of the 998 commonest words."""
    folder = Path(os.environ.get("CONCEPTORS_DATA", ".")) / "clinc150"
    content = json.loads((folder / "data_full.json").read_text())
    groups = list(json.loads((folder / "domains.json").read_text()).values())[:domains]
    counts = Counter(word for text, _ in content["train"] for word in text.split())
    number = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(998))}
    draw, tasks = Generator().manual_seed(0), []
    for first, group in enumerate(groups):
        parts = []
        for name in ("train", "val", "test"):
            pairs = [(text.split()[:12], intent) for text, intent in content[name]]
            pairs = [(words, intent) for words, intent in pairs if intent in group]
            rows = [[number.get(word, 1) for word in words] for words, _ in pairs]  # 1: rare
            x = torch.tensor([row + [0] * (12 - len(row)) for row in rows])  # 0: padding
            y = torch.tensor([15 * first + group.index(intent) for _, intent in pairs])
            order = torch.randperm(len(x), generator=draw)
            parts.append((x[order], y[order]))
        tasks.append(Task(*parts))
    return tasks


def restoring(tasks: list[Task], noise: float = 0.0) -> list[Task]:
    """Tasks whose targets are the images, with noise added to the inputs."""
    draw, result = Generator().manual_seed(0), []
    for task in tasks:
        images = (task.train[0], task.validation[0], task.test[0])
        result.append(
            Task(*((x + noise * torch.randn(x.shape, generator=draw), x) for x in images))
        )
    return result


def subspaces() -> list[Task]:
    """A smooth function of five numbers, in another five of twenty dimensions each time."""
    draw = Generator().manual_seed(0)
    tasks = []
    for _ in range(4):
        basis = torch.linalg.qr(torch.randn(20, 5, generator=draw)).Q
        weights = torch.randn(5, 2, generator=draw)
        parts = []
        for count in (800, 150, 300):
            z = torch.randn(count, 5, generator=draw)
            parts.append((2 * z @ basis.mT, torch.sin(z @ weights).sum(1, keepdim=True)))
        tasks.append(Task(*parts))
    return tasks


def synthetic(
    sample: Callable[[int, int, Generator], Part],
    tasks: int,
    counts: Sequence[int] = (800, 200, 400),
) -> list[Task]:
    """Tasks whose training, validation and test data `sample(task, count, generator)` draws."""
    draw = Generator().manual_seed(0)
    return [Task(*(sample(task, count, draw) for count in counts)) for task in range(tasks)]


def interval(task: int, count: int, draw: Generator) -> Part:
    """One function of one number, learned on one quarter of its range after the other."""
    x = task - 2.0 + torch.rand(count, 1, generator=draw)
    return x, torch.sin(3 * x) + 0.5 * x


def sinusoid(task: int, count: int, draw: Generator) -> Part:
    """A sine of another amplitude, frequency and phase each time."""
    x = 6 * torch.rand(count, 1, generator=draw) - 3
    return x, (1 - 0.15 * task) * torch.sin((1 + 0.4 * task) * x + 2 * task)


def robot_arm(task: int, count: int, draw: Generator) -> Part:
    """Where three joints move a planar arm's hand, on one part of the first joint's range each."""
    joints = 3 * torch.rand(count, 3, generator=draw) - 1.5
    joints[:, 0] = joints[:, 0] / 2 + 1.5 * task - 2.25
    angles, lengths = joints.cumsum(1), torch.tensor([1.0, 0.8, 0.5])
    return joints, torch.stack([angles.cos() @ lengths, angles.sin() @ lengths], 1)


def region(task: int, count: int, draw: Generator) -> Part:
    """Three classes of ten features, compared with those at the centre of a region that moves."""
    fixed = Generator().manual_seed(1)
    inner, outer = torch.randn(10, 30, generator=fixed), torch.randn(30, 3, generator=fixed)
    turn = torch.tensor([math.cos(0.6 * task), math.sin(0.6 * task)])
    centre = 1.5 * turn @ torch.randn(2, 10, generator=fixed)
    x = centre + torch.randn(count, 10, generator=draw)
    scores = torch.sin(torch.stack([x, centre.expand_as(x)]) @ inner / 4) @ outer
    return x, (scores[0] - scores[1]).argmax(1)


def series(task: int, count: int, draw: Generator) -> Part:
    """Three classes of 30 steps of two noisy waves, which differ in their frequencies."""
    frequencies = 0.3 + 1.2 * torch.rand(12, 2, generator=Generator().manual_seed(1))
    y = 3 * task + torch.randint(3, (count,), generator=draw)
    phase = 6.28 * torch.rand(count, 1, 2, generator=draw)
    waves = torch.sin(torch.arange(30.0)[:, None] * frequencies[y][:, None] + phase)
    return (waves + 0.2 * torch.randn(waves.shape, generator=draw)).flatten(1), y


# --- sequences ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Tasks, a network and the length of training; regression if the targets are floats."""

    tasks: Callable[[], list[Task]]
    model: Callable[[], nn.Module]
    epochs: int = 20
    batch: int = 32
    heads: bool = False

    def load(self, device: torch.device) -> list[Task]:
        tasks = separate_heads(self.tasks()) if self.heads else self.tasks()
        return [task.to(device) for task in tasks]


def net(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> Callable[[], nn.Module]:
    return partial(mlp, *sizes, activation=activation)


SMALL, WORDS = net(64, 128, 10), partial(Transformer, 12, 75, words=1000)
TWO_BY_FIVE, FIVE_BY_TWO = partial(digit_tasks, HALVES), partial(digit_tasks, PAIRS)
MNIST = partial(scenario_tasks, "disjoint-mnist")
FASHION = partial(scenario_tasks, "disjoint-fashion", tasks=5, limit=3_000)
CIFAR = partial(scenario_tasks, "split-cifar100", 4, tasks=20, limit=20_000)
ROTATED = partial(scenario_tasks, "rotated-mnist", tasks=5, limit=1_500)
QUICK = {
    "digits 5x2, pixels 0-1": Case(FIVE_BY_TWO, SMALL),
    "digits 5x2, pixels 0-16": Case(partial(FIVE_BY_TWO, "0-16"), SMALL),
    "digits 5x2, z-scored": Case(partial(FIVE_BY_TWO, "z"), SMALL),
    "digits 2x5": Case(TWO_BY_FIVE, SMALL),
    "digits 2x5, 5 epochs": Case(TWO_BY_FIVE, net(64, 256, 10), 5, 64),
    "digits 2x5, 200 epochs": Case(TWO_BY_FIVE, SMALL, 200),
    "digits, one class per task": Case(partial(digit_tasks, [[i] for i in range(10)]), SMALL),
    "digits permuted x5": Case(partial(permuted_digits, 5), SMALL),
    "digits permuted x40": Case(partial(permuted_digits, 40), net(64, 200, 200, 10), 3),
    "digits 2x5, GRU": Case(TWO_BY_FIVE, partial(Reader, nn.GRU), 30, 64),
    "digits 2x5, LSTM": Case(TWO_BY_FIVE, partial(Reader, nn.LSTM), 30, 64),
    "digits 5x2, transformer": Case(FIVE_BY_TWO, partial(Transformer, 8, 10, size=8)),
    "denoising digits": Case(lambda: restoring(FIVE_BY_TWO(), 0.3), net(64, 128, 32, 128, 64), 40),
    "autoencoder, Fashion": Case(lambda: restoring(FASHION()), net(784, 128, 32, 128, 784)),
    "regression, four subspaces": Case(subspaces, net(20, 128, 128, 1), 60),
    "regression, 1-D by intervals": Case(
        partial(synthetic, interval, 4, (256, 64, 128)),
        net(1, 128, 128, 1, activation=nn.Tanh),
        150,
    ),
    "sinusoids, heads": Case(partial(synthetic, sinusoid, 5), net(1, 100, 100, 5), 60, heads=True),
    "robot arm": Case(partial(synthetic, robot_arm, 4), net(3, 100, 100, 2), 60),
    "tabular regions": Case(partial(synthetic, region, 5), net(10, 100, 100, 3)),
    "tabular drift, online": Case(partial(synthetic, region, 10), net(10, 100, 100, 3), 1, 10),
    "online Fashion": Case(partial(FASHION, limit=6_000), net(784, 200, 10), 1, 10),
    "online rotated MNIST": Case(ROTATED, net(784, 200, 10), 1, 10),
    "small CNN, one head": Case(FASHION, conv_net, 6),
    "small CNN, heads": Case(FASHION, conv_net, 6, heads=True),
    "small CNN, BatchNorm": Case(FASHION, partial(conv_net, norm=True), 6, heads=True),
    "ResNet, Fashion": Case(partial(FASHION, tasks=2), partial(res_net, 1, 28, 10), 6),
    "ResNet, CIFAR-100": Case(CIFAR, partial(res_net, 3, 32, 20), 8, heads=True),
    "transformer, words, one head": Case(partial(sentences, 5), WORDS, 6),
    "transformer, words, heads": Case(partial(sentences, 5), WORDS, 6, heads=True),
    "GRU, series, one head": Case(partial(synthetic, series, 4), partial(Reader, nn.GRU, 2, 12)),
    "LSTM, series, heads": Case(
        partial(synthetic, series, 4), partial(Reader, nn.LSTM, 2, 12), heads=True
    ),
}
LARGE, CNN_TASKS = net(784, 800, 10), partial(FASHION, limit=10_000)
PERMUTED = partial(scenario_tasks, "permuted-mnist", tasks=10)
SEQUENCES = QUICK | {
    "MNIST 2x5": Case(partial(MNIST, tasks=2), LARGE, 5, 64),
    "MNIST 5x2": Case(partial(MNIST, tasks=5), LARGE, 2, 64),
    "MNIST 10x1": Case(partial(MNIST, tasks=10), LARGE, 2, 64),
    "Fashion 2x5": Case(partial(FASHION, tasks=2, limit=None), LARGE, 2, 128),
    "Fashion CNN 5x2, one head": Case(CNN_TASKS, conv_net, 12, 64),
    "Fashion CNN 5x2, heads": Case(CNN_TASKS, conv_net, 12, 64, heads=True),
    "MNIST permuted x10": Case(PERMUTED, net(784, 100, 10), 2, 64),
    "MNIST, then Fashion, BatchNorm": Case(
        two_sets, partial(conv_net, 20, True), 5, 64, heads=True
    ),
}
