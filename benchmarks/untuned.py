"""Measure `Shield(model)` with default settings on sequences that people try first.

All methods use the loop of the quickstart, cross-entropy (squared error for regression), and one
optimizer at a usual rate. Scores are means over tasks: test accuracy in percent, or 100 R².

A method is `plain`, `joint` (all tasks at once), `readout` (the first task trains the network; a
closed-form readout of its input and layers learns all tasks), `replay SAMPLES` (a reservoir of past
samples is half of each batch), `shield`, `aperture NUMBER`, or `shield NAME=VALUE …` with options
of `Auto`, or with `remember_every=STEPS` instead of the tasks' boundaries. An optimizer is AdamW or
SGD (with momentum), and a rate. With --grid, 6 apertures x 3 rates are tried on validation data
with seed 0, and the best pair runs with all seeds.

    python -m benchmarks.untuned --device cuda                     # run what the table lacks
    python -m benchmarks.untuned --sequences digits --grid --out out/untuned.csv
    python -m benchmarks.untuned --sequences "permuted x40" --optimizers "AdamW 0.001" \\
        --methods shield "shield room=0" "shield room=0.4" --out out/room.csv
    python -m benchmarks.untuned --quick --methods plain shield "replay 200" --seeds 1
    python -m benchmarks.untuned --table                           # print the table of the docs

A run with --quick takes up to 40 seconds on one CPU core, others take minutes.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from benchmarks.common import (
    Row,
    Table,
    environment,
    find_device,
    markdown,
    mean_and_std,
    numbers,
    options,
    say,
)
from conceptors import Auto, LayerInputs, Readout, Shield
from conceptors.scenarios import Split, build

Part = tuple[Tensor, Tensor]  # inputs and targets
Curve = list[tuple[int, float]]  # steps and validation scores of the task that is being learned
KEY = ("sequence", "optimizer", "method", "seed")
METHODS = ("plain", "shield", "readout", "joint")
OPTIMIZERS = ("AdamW 0.001", "SGD 0.1")
APERTURES = (1, 3, 9, 27, 81, 243)
FACTORS = (0.3, 1.0, 3.0)  # of the rate, for --grid
STEPS = {round(2 ** (i / 2)) for i in range(40)}  # when the curve is measured
EVERYTHING = torch.ones(1, dtype=torch.bool)  # the outputs of a task without its own head
PAIRS, HALVES = [[2 * i, 2 * i + 1] for i in range(5)], [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
SINGLE = [[i] for i in range(10)]


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


class Growing(nn.Module):
    """A head of two outputs, and two more with every task."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Linear(128, 2)

    def grow(self, count: int) -> None:
        old = self.head
        head = nn.Linear(old.in_features, old.out_features + count).to(old.weight.device)
        with torch.no_grad():
            head.weight[: old.out_features] = old.weight
            head.bias[: old.out_features] = old.bias
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(x))
        return result


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
        self.size, self.place = size, nn.Parameter(0.02 * torch.randn(length, 64))
        self.embed = nn.Linear(size, 64) if size else nn.Embedding(words, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.unflatten(1, (-1, self.size)) if self.size else x) + self.place
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
    head: Tensor = EVERYTHING

    def to(self, device: torch.device) -> Task:
        parts = (self.train, self.validation, self.test)
        return Task(*((x.to(device), y.to(device)) for x, y in parts), self.head.to(device))


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
def scenario_tasks(
    name: str, heads: bool = False, offset: int = 0, first: int = 0, **more: Any
) -> list[Task]:
    """The tasks of a scenario of the package, or the first ones, whole in memory."""

    def part(split: Split) -> Part:
        x, y = split.take(torch.arange(len(split)))
        return x.flatten(1), y + offset

    tasks = []
    for task in build(name, 0, **more).tasks[: first or None]:
        classes = torch.ones(10, dtype=torch.bool) if task.classes is None else task.classes
        head = functional.pad(classes, (offset, 0)) if heads else EVERYTHING
        tasks.append(Task(part(task.train), part(task.validation), part(task.test), head))
    return tasks


def two_sets() -> list[Task]:
    """MNIST, then Fashion-MNIST, each with its own ten outputs."""
    first = scenario_tasks("disjoint-mnist", heads=True, tasks=1, limit=6_000)
    second = scenario_tasks("disjoint-fashion", heads=True, tasks=1, limit=6_000, offset=10)
    return [replace(task, head=functional.pad(task.head, (0, 10))) for task in first] + second


@cache
def sentences(domains: int, heads: bool) -> list[Task]:
    """CLINC150: each domain of 15 intents is a task; a sentence is twelve of 1,000 words."""
    folder = Path(os.environ.get("CONCEPTORS_DATA", ".")) / "clinc150"
    content = json.loads((folder / "data_full.json").read_text())
    groups = list(json.loads((folder / "domains.json").read_text()).values())[:domains]
    label = {intent: i for i, intent in enumerate(intent for group in groups for intent in group)}
    counts = Counter(word for text, _ in content["train"] for word in text.split())
    number = {word: i + 2 for i, (word, _) in enumerate(counts.most_common(998))}
    tasks = []
    for group in groups:
        parts = []
        for name in ("train", "val", "test"):
            pairs = [(text.split()[:12], label[i]) for text, i in content[name] if i in group]
            x = torch.zeros(len(pairs), 12, dtype=torch.long)  # 0 is padding, 1 a rare word
            for row, (words, _) in zip(x, pairs):
                row[: len(words)] = torch.tensor([number.get(word, 1) for word in words])
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
            parts.append((x[order], torch.tensor([y for _, y in pairs])[order]))
        head = torch.isin(torch.arange(len(label)), torch.tensor([label[i] for i in group]))
        tasks.append(Task(*parts, head if heads else EVERYTHING))
    return tasks


def restoring(tasks: list[Task], noise: float = 0.0) -> list[Task]:
    """Tasks whose targets are the images, with noise added to the inputs."""
    draw, restored = torch.Generator().manual_seed(0), []
    for task in tasks:
        images = (task.train[0], task.validation[0], task.test[0])
        parts = ((x + noise * torch.randn(x.shape, generator=draw), x) for x in images)
        restored.append(Task(*parts))
    return restored


Make = Callable[[int, torch.Generator], Callable[[int], Part]]


def synthetic(
    make: Make, tasks: int, counts: Sequence[int] = (800, 200, 400), outputs: int = 0
) -> list[Task]:
    """Tasks of samples that `make(task, generator)(count)` draws; heads with `outputs` each."""
    draw, result = torch.Generator().manual_seed(0), []
    for number in range(tasks):
        sample = make(number, draw)
        parts = [sample(count) for count in counts]
        head = torch.arange(tasks * outputs) // outputs == number if outputs else EVERYTHING
        result.append(Task(*parts, head))
    return result


def subspace(number: int, draw: torch.Generator) -> Callable[[int], Part]:
    """A smooth function of five numbers, in another five of twenty dimensions each time."""
    basis = torch.linalg.qr(torch.randn(20, 5, generator=draw)).Q
    weights = torch.randn(5, 2, generator=draw)

    def sample(count: int) -> Part:
        z = torch.randn(count, 5, generator=draw)
        return 2 * z @ basis.mT, torch.sin(z @ weights).sum(1, keepdim=True)

    return sample


def interval(number: int, draw: torch.Generator) -> Callable[[int], Part]:
    """One function of one number, learned on one quarter of its range after the other."""

    def sample(count: int) -> Part:
        x = number - 2.0 + torch.rand(count, 1, generator=draw)
        return x, torch.sin(3 * x) + 0.5 * x

    return sample


def sinusoid(number: int, draw: torch.Generator) -> Callable[[int], Part]:
    """A sine of another amplitude, frequency and phase each time."""
    amplitude, frequency, phase = (torch.rand(3, generator=draw) + 0.5).tolist()

    def sample(count: int) -> Part:
        x = 6 * torch.rand(count, 1, generator=draw) - 3
        return x, amplitude * torch.sin(2 * frequency * x + 6 * phase)

    return sample


def robot_arm(number: int, draw: torch.Generator) -> Callable[[int], Part]:
    """Where the hand of a planar arm with three joints is, one quarter of its range at a time."""

    def sample(count: int) -> Part:
        joints = torch.rand(count, 3, generator=draw) * 3 - 1.5
        joints[:, 0] = (joints[:, 0] + 1.5) / 2 + 1.5 * number - 3
        angles, lengths = joints.cumsum(1), torch.tensor([1.0, 0.8, 0.5])
        return joints, torch.stack([angles.cos() @ lengths, angles.sin() @ lengths], 1)

    return sample


def region(number: int, draw: torch.Generator, distance: float = 3.0) -> Callable[[int], Part]:
    """Three classes that one function of ten features divides, around another centre each time."""
    fixed = torch.Generator().manual_seed(1)
    inner, outer = torch.randn(10, 30, generator=fixed), torch.randn(30, 3, generator=fixed)
    turns = torch.randn(2, 10, generator=fixed)
    angle = torch.tensor([0.6 * number])
    centre = distance * (angle.cos() * turns[0] + angle.sin() * turns[1]) / 10**0.5

    def sample(count: int) -> Part:
        x = torch.randn(count, 10, generator=draw)
        scores = torch.tanh((centre + x) @ inner / 10**0.5) @ outer
        return centre + x, (scores - scores.mean(0)).argmax(1)

    return sample


def series(number: int, draw: torch.Generator) -> Callable[[int], Part]:
    """Three classes of 30 steps of two noisy waves, which differ in their frequencies."""
    frequencies = 0.3 + 1.2 * torch.rand(3, 2, generator=draw)

    def sample(count: int) -> Part:
        y = torch.randint(3, (count,), generator=draw)
        phase = 6.28 * torch.rand(count, 1, 2, generator=draw)
        waves = torch.sin(torch.arange(30.0)[:, None] * frequencies[y][:, None] + phase)
        return (waves + 0.2 * torch.randn(waves.shape, generator=draw)).flatten(1), 3 * number + y

    return sample


# --- sequences ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Tasks, a network and the length of training."""

    tasks: Callable[[], list[Task]]
    model: Callable[[], nn.Module]
    epochs: int = 20
    batch: int = 32
    regression: bool = False
    grows: bool = False

    def loss(self, out: Tensor, y: Tensor, head: Tensor) -> Tensor:
        """The loss of the outputs that `head` marks, for all samples or for each."""
        head = head[..., : out.shape[1]]  # a readout has the classes that it has seen
        if self.regression:
            return (out - y).square()[head.expand_as(out)].mean()
        return functional.cross_entropy(out.masked_fill(~head, -math.inf), y)

    @torch.no_grad()
    def score(self, model: nn.Module, task: Task, part: Part) -> float:
        """Accuracy in percent or 100 R²; 0 if the outputs are not finite."""
        model.eval()
        out = torch.cat([model(x) for x in part[0].split(1000)])
        model.train()
        if not bool(out.isfinite().all()):
            return 0.0
        if self.regression:
            variance = (part[1] - part[1].mean(0)).square().mean()
            return 100 * float(1 - self.loss(out, part[1], task.head) / variance)
        out = out.masked_fill(~task.head[: out.shape[1]], -math.inf)
        return 100 * float((out.argmax(1) == part[1]).float().mean())


SMALL = partial(mlp, 64, 128, 10)
LARGE = partial(mlp, 784, 800, 10)
CODER, WIDE_CODER = partial(mlp, 64, 128, 32, 128, 64), partial(mlp, 784, 128, 32, 128, 784)
MNIST = partial(scenario_tasks, "disjoint-mnist")
FASHION = partial(scenario_tasks, "disjoint-fashion")
QUICK = {
    "digits 5x2, pixels 0-1": Case(lambda: digit_tasks(PAIRS), SMALL),
    "digits 5x2, pixels 0-16": Case(lambda: digit_tasks(PAIRS, "0-16"), SMALL),
    "digits 5x2, z-scored": Case(lambda: digit_tasks(PAIRS, "z"), SMALL),
    "digits 2x5": Case(lambda: digit_tasks(HALVES), SMALL),
    "digits 2x5, 5 epochs": Case(
        lambda: digit_tasks(HALVES), partial(mlp, 64, 256, 10), epochs=5, batch=64
    ),
    "digits 2x5, 200 epochs": Case(lambda: digit_tasks(HALVES), SMALL, epochs=200),
    "digits, one class per task": Case(lambda: digit_tasks(SINGLE), SMALL),
    "digits 5x2, growing head": Case(lambda: digit_tasks(PAIRS), Growing, grows=True),
    "digits permuted x5": Case(lambda: permuted_digits(5), SMALL),
    "digits permuted x40": Case(
        lambda: permuted_digits(40), partial(mlp, 64, 200, 200, 10), epochs=3
    ),
    "digits denoising": Case(
        lambda: restoring(digit_tasks(PAIRS), 0.3), CODER, epochs=40, regression=True
    ),
    "Fashion autoencoder": Case(
        lambda: restoring(FASHION(tasks=5, limit=3_000)), WIDE_CODER, epochs=20, regression=True
    ),
    "regression, four subspaces": Case(
        partial(synthetic, subspace, 4, (800, 150, 300)),
        partial(mlp, 20, 128, 128, 1),
        epochs=60,
        regression=True,
    ),
    "regression, 1-D by intervals": Case(
        partial(synthetic, interval, 4, (256, 64, 128)),
        partial(mlp, 1, 128, 128, 1, activation=nn.Tanh),
        epochs=150,
        regression=True,
    ),
    "sinusoids, heads": Case(
        partial(synthetic, sinusoid, 5, outputs=1),
        partial(mlp, 1, 100, 100, 5),
        epochs=60,
        regression=True,
    ),
    "robot arm": Case(
        partial(synthetic, robot_arm, 4), partial(mlp, 3, 100, 100, 2), epochs=60, regression=True
    ),
    "tabular regions": Case(
        partial(synthetic, region, 5), partial(mlp, 10, 100, 100, 3), epochs=20
    ),
    "tabular drift, online": Case(
        partial(synthetic, region, 10), partial(mlp, 10, 100, 100, 3), epochs=1, batch=10
    ),
    "online Fashion": Case(
        partial(FASHION, tasks=5, limit=6_000), partial(mlp, 784, 200, 10), epochs=1, batch=10
    ),
    "online rotated MNIST": Case(
        partial(scenario_tasks, "rotated-mnist", tasks=5, limit=1_500),
        partial(mlp, 784, 200, 10),
        epochs=1,
        batch=10,
    ),
    "small CNN, one head": Case(partial(FASHION, tasks=5, limit=3_000), conv_net, epochs=6),
    "small CNN, heads": Case(
        partial(FASHION, heads=True, tasks=5, limit=3_000), conv_net, epochs=6
    ),
    "small CNN, BatchNorm": Case(
        partial(FASHION, heads=True, tasks=5, limit=3_000), partial(conv_net, norm=True), epochs=6
    ),
    "ResNet, Fashion": Case(
        partial(FASHION, tasks=2, limit=3_000), partial(res_net, 1, 28, 10), epochs=6
    ),
    "ResNet, CIFAR-100": Case(
        partial(scenario_tasks, "split-cifar100", True, first=4, tasks=20, limit=20_000),
        partial(res_net, 3, 32, 100),
        epochs=8,
    ),
    "transformer, words, heads": Case(
        partial(sentences, 5, True), partial(Transformer, 12, 75, words=1000), epochs=6
    ),
    "transformer, words, one head": Case(
        partial(sentences, 5, False), partial(Transformer, 12, 75, words=1000), epochs=6
    ),
    "transformer, digits by rows": Case(
        lambda: digit_tasks(PAIRS), partial(Transformer, 8, 10, size=8)
    ),
    **{
        f"digits 2x5, {kind.__name__}": Case(
            lambda: digit_tasks(HALVES), partial(Reader, kind), epochs=30, batch=64
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    "GRU, series, one head": Case(
        partial(synthetic, series, 4), partial(Reader, nn.GRU, 2, 12), epochs=20
    ),
    "LSTM, series, heads": Case(
        partial(synthetic, series, 4, outputs=3), partial(Reader, nn.LSTM, 2, 12), epochs=20
    ),
}
LONG = {
    "MNIST 2x5": Case(partial(MNIST, tasks=2), LARGE, epochs=5, batch=64),
    "MNIST 5x2": Case(partial(MNIST, tasks=5), LARGE, epochs=2, batch=64),
    "MNIST 10x1": Case(partial(MNIST, tasks=10), LARGE, epochs=2, batch=64),
    "Fashion 2x5": Case(partial(FASHION, tasks=2), LARGE, epochs=2, batch=128),
    "Fashion CNN 5x2, one head": Case(
        partial(FASHION, tasks=5, limit=10_000), conv_net, epochs=12, batch=64
    ),
    "Fashion CNN 5x2, heads": Case(
        partial(FASHION, heads=True, tasks=5, limit=10_000), conv_net, epochs=12, batch=64
    ),
    "MNIST permuted x10": Case(
        partial(scenario_tasks, "permuted-mnist", tasks=10),
        partial(mlp, 784, 100, 10),
        epochs=2,
        batch=64,
    ),
    "MNIST, then Fashion, BatchNorm": Case(
        two_sets, partial(conv_net, 20, True), epochs=5, batch=64
    ),
}
SEQUENCES = QUICK | LONG


# --- one run ------------------------------------------------------------------------------


def make_optimizer(name: str, model: nn.Module) -> Optimizer:
    kind, rate = name.split()
    if kind == "SGD":
        return torch.optim.SGD(model.parameters(), lr=float(rate), momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=float(rate))


def make_shield(method: str, model: nn.Module) -> Shield | None:
    """Create the shield that a method name describes; None for methods without a shield."""
    kind, *words = method.split()
    if kind == "aperture":
        return Shield(model, aperture=float(words[0]))
    if kind != "shield":
        return None
    chosen = dict(word.split("=") for word in words)
    chosen.pop("remember_every", None)
    return Shield(model, Auto(**{name: float(value) for name, value in chosen.items()}))


class Reservoir:
    """A uniform sample of all samples so far, each with its target and its task's head."""

    def __init__(self, size: int) -> None:
        self.size, self.keys, self.parts = size, torch.zeros(0), list[Tensor]()

    def add(self, *parts: Tensor) -> None:
        self.keys = torch.cat([self.keys, torch.rand(len(parts[0]))])
        chosen = self.keys.topk(min(self.size, len(self.keys))).indices
        both = [torch.cat(pair) for pair in zip(self.parts, parts)] or parts
        self.keys, self.parts = self.keys[chosen], [part[chosen] for part in both]

    def draw(self, count: int) -> list[Tensor]:
        chosen = torch.randint(len(self.keys), (count,))
        return [part[chosen] for part in self.parts]


class Closed(nn.Module):
    """A closed-form readout of a network's input and layers, with default settings."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.reader = LayerInputs(model, example)
        count = min(max(500, 8 * self.reader.widths.get("input", 0)), 2000)
        self.readout = Readout(self.reader.out_features, self.reader.lift(count))

    def learn(self, part: Part) -> None:
        self.readout.learn_from(self.reader, zip(*(both.split(1000) for both in part)))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.readout(self.reader(x))
        return result


def learn(
    case: Case, method: str, optimizer_name: str, seed: int, device: torch.device, patience: int = 0
) -> dict[str, Any]:
    """Scores of all tasks after the last one, and test scores and curves of each new task."""
    tasks = [task.to(device) for task in case.tasks()]
    torch.manual_seed(seed)
    model: Any = case.model().to(device)
    if method == "joint" and case.grows:
        model.grow(2 * (len(tasks) - 1))
    shield = make_shield(method, model)
    every = int(method.partition("remember_every=")[2].split()[0]) if "every=" in method else 0
    memory = Reservoir(int(method.split()[1])) if method.startswith("replay ") else None
    readout = Closed(model, tasks[0].train[0][:2]).to(device) if method == "readout" else None
    optimizer = make_optimizer(optimizer_name, model)
    if shield is not None:
        shield.guard(optimizer)
    recent: list[Tensor] = []

    def after_step(x: Tensor) -> None:
        if shield is not None and every:
            recent.append(x)
            if len(recent) == every:
                shield.remember(torch.cat(recent))
                recent.clear()

    learned: list[float] = []
    curves: list[Curve] = []
    for number, group in enumerate([tasks] if method == "joint" else [[task] for task in tasks]):
        is_fixed = readout is not None and number > 0
        if number and case.grows and not is_fixed:
            model.grow(2)
            optimizer = make_optimizer(optimizer_name, model)
            if shield is not None:
                shield.guard(optimizer)
        if not is_fixed:
            curves.append(_train(case, model, optimizer, group, patience, memory, after_step))
            if not curves[-1]:
                nothing = [0.0] * len(tasks)  # diverged: its outputs are chance
                return {"validation": nothing, "test": nothing, "learned": nothing, "curves": []}
        if readout is not None:
            readout.learn(group[0].train)
        learned += [case.score(readout or model, task, task.test) for task in group]
        if shield is not None and not every:
            shield.remember(group[0].train[0])
        if memory is not None:
            memory.add(*_samples(group))
    return {
        "validation": [case.score(readout or model, task, task.validation) for task in tasks],
        "test": [case.score(readout or model, task, task.test) for task in tasks],
        "learned": learned,
        "curves": curves,
    }


def _samples(tasks: list[Task]) -> list[Tensor]:
    """Training inputs, targets and the outputs that belong to them."""
    heads = [task.head.expand(len(task.train[1]), -1) for task in tasks]
    parts = ([task.train[0] for task in tasks], [task.train[1] for task in tasks], heads)
    return [torch.cat(part) for part in parts]


def _train(
    case: Case,
    model: nn.Module,
    optimizer: Optimizer,
    tasks: list[Task],
    patience: int,
    memory: Reservoir | None,
    after_step: Callable[[Tensor], None],
) -> Curve:
    """Train on one task, or on several mixed; an empty curve if the loss became infinite."""
    samples = _samples(tasks)
    curve: Curve = []
    best, waited, step = -math.inf, 0, 0

    def score() -> float:
        parts = [(task, task.validation[0][:500], task.validation[1][:500]) for task in tasks]
        return mean(case.score(model, task, (x, y)) for task, x, y in parts)

    model.train()
    for _ in range(case.epochs):
        for indices in torch.randperm(len(samples[0])).split(case.batch):
            batch = [part[indices.to(part.device)] for part in samples]
            if memory is not None and memory.parts:
                batch = [torch.cat(pair) for pair in zip(batch, memory.draw(len(indices)))]
            optimizer.zero_grad()
            loss = case.loss(model(batch[0]), *batch[1:])
            loss.backward()
            optimizer.step()
            step += 1
            if step in STEPS:
                curve.append((step, score()))
            after_step(batch[0])
        if patience:
            best, waited = (now, 0) if (now := score()) > best else (best, waited + 1)
            if waited == patience:
                break
    return [*curve, (step, score())] if math.isfinite(float(loss.detach())) else []


# --- the table ----------------------------------------------------------------------------


def run(
    table: Table, name: str, optimizer: str, method: str, seed: int, device: Any, patience: int = 0
) -> None:
    """Add one run to the table unless it is in it."""
    label = f"{method}, patience {patience}" if patience else method
    key = {"sequence": name, "optimizer": optimizer, "method": label, "seed": seed}
    if key in table:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # full layers are part of the question
        start = time.process_time()
        scores = learn(SEQUENCES[name], method, optimizer, seed, device, patience)
    row: Row = {**key, "score": round(mean(scores["test"]), 4)}
    row |= {"validation": round(mean(scores["validation"]), 4)}
    row |= {"final_scores": numbers(scores["test"]), "learned": numbers(scores["learned"])}
    row["curves"] = "; ".join(
        " ".join(f"{step}:{score:.4g}" for step, score in curve) for curve in scores["curves"]
    )
    row["seconds"] = round(time.process_time() - start, 1)
    table.add(row | environment(device))
    say(f"{name} | {optimizer} | {label} | seed {seed}: {row['score']:.1f}, {row['seconds']} s")


def grid(name: str, optimizer: str) -> list[tuple[str, str]]:
    """Optimizers and methods to try."""
    kind, rate = optimizer.split()
    rates = [f"{kind} {float(rate) * factor:g}" for factor in FACTORS]
    return [(rate, f"aperture {aperture}") for aperture in APERTURES for rate in rates]


def best_of_grid(table: Table, name: str, optimizer: str) -> tuple[str, str] | None:
    """The optimizer and aperture with the best validation score of seed 0."""
    scores = {
        cell: values[0]
        for cell in grid(name, optimizer)
        if (
            values := table.values(
                "validation", sequence=name, optimizer=cell[0], method=cell[1], seed=0
            )
        )
    }
    return max(scores, key=lambda cell: scores[cell]) if scores else None


def tables(table: Table, names: Sequence[str], optimizers: Sequence[str]) -> str:
    """Two tables per optimizer, final scores and how fast tasks are learned; columns: methods."""
    others = dict.fromkeys(row["method"] for row in table.rows if row["method"] not in METHODS)
    methods = [*METHODS, *(name for name in others if not name.startswith("aperture"))]
    parts = []
    for optimizer in optimizers:
        rows, speeds = [], []
        for name in names:
            here = {"sequence": name, "optimizer": optimizer}
            cells = [mean_and_std(table.values("score", **here, method=m), 1) for m in methods]
            best = best_of_grid(table, name, optimizer)
            values = best and table.values(
                "score", sequence=name, optimizer=best[0], method=best[1]
            )
            if set(cells) != {"–"}:
                rows.append([name, *cells, mean_and_std(values or [], 1)])
            cells = [speed(table, method, **here) for method in methods]
            if set(cells) != {"–"}:
                speeds.append([name, *cells])
        heading = ["sequence", *(f"`{m}`" for m in methods), "best of the grid"]
        parts.append(f"**{optimizer}**\n\n{markdown(heading, rows)}")
        if speeds:
            parts.append(f"{SPEED}\n\n{markdown(heading[:-1], speeds)}")
    return "\n\n".join(parts)


SPEED = """
Score of each task right after learning it; in brackets the steps to 90 % of plain training's best
validation score, as a multiple of plain training's steps (median over later tasks).
"""


def speed(table: Table, method: str, **where: Any) -> str:
    """Mean score right after each task, and how many times plain training's steps that took."""
    runs = {
        (row["method"], str(row["seed"])): row
        for row in table.rows
        if row.get("curves") and all(row[name] == value for name, value in where.items())
    }
    plain = "plain" + "".join(method.partition(",")[1:])  # with the same patience
    scores, ratios = [], []
    for (name, seed), row in runs.items():
        if name == method:
            scores += [float(score) for score in row["learned"].split()]
        if name == method != "joint" and (plain, seed) in runs:
            pairs = zip(read_curves(row), read_curves(runs[plain, seed]))
            ratios += [steps90(curve, of_plain) for curve, of_plain in list(pairs)[1:]]
    if not scores:
        return "–"
    return f"{mean(scores):.1f}" + (f" ({median(ratios):.1f})" if ratios else "")


def read_curves(row: Row) -> list[Curve]:
    pairs = [[pair.split(":") for pair in curve.split()] for curve in row["curves"].split(";")]
    return [[(int(step), float(score)) for step, score in curve] for curve in pairs]


def steps90(curve: Curve, of_plain: Curve) -> float:
    """Steps to 90 % of plain training's best score, as a multiple of plain training's steps."""
    target = 0.9 * max(score for _, score in of_plain)

    def steps(of: Curve) -> float:
        before, low = 0, of[0][1]
        for step, score in of:
            if score >= target:  # between two measurements the score rises evenly
                share = (target - low) / (score - low) if score > low else 1.0
                return before + share * (step - before)
            before, low = step, score
        return math.inf

    return steps(curve) / steps(of_plain)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/untuned.csv")
    parser.add_argument(
        "--sequences",
        nargs="+",
        metavar="PART",
        help="names or parts of names (default: all)",
    )
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), metavar='"NAME RATE"')
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--quick", action="store_true", help="only sequences of seconds on a CPU")
    parser.add_argument(
        "--early-stopping",
        type=int,
        default=0,
        metavar="PATIENCE",
        help="end a task when its validation score has not risen for so many epochs",
    )
    parser.add_argument("--grid", action="store_true", help="also try 6 apertures x 3 rates")
    asked = parser.parse_args(arguments)
    names = list(QUICK if asked.quick else SEQUENCES)
    if asked.sequences:
        names = [name for name in names if any(part in name for part in asked.sequences)]
    if asked.tiny:
        names = ["digits, one class per task"]
        SEQUENCES[names[0]] = Case(lambda: digit_tasks(HALVES), partial(mlp, 64, 8, 10), epochs=1)
    if not names:
        parser.error(f"no sequence has this in its name; there are {', '.join(SEQUENCES)}")
    table, device = Table(asked.out, KEY), find_device(asked.device)
    seeds = range(asked.seeds or 3)
    for name in () if asked.table else names:
        for optimizer in asked.optimizers:
            for method in asked.methods:
                for seed in seeds:
                    run(table, name, optimizer, method, seed, device, asked.early_stopping)
            for rate, method in grid(name, optimizer) if asked.grid else ():
                run(table, name, rate, method, 0, device)
            if asked.grid and (best := best_of_grid(table, name, optimizer)):
                for seed in seeds:
                    run(table, name, *best, seed, device)
    print(tables(table, names, asked.optimizers))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
