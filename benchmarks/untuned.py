"""Measure `Shield(model)` with default settings on sequences that people try first.

All methods use the loop of the quickstart, cross-entropy (squared error for regression), and one
optimizer at a usual rate. Scores are means over tasks: test accuracy in percent, or 100 R².

A method is `plain`, `joint` (all tasks at once), `readout` (the first task trains the network; a
closed-form readout of its input and layers learns all tasks), `shield`, `aperture NUMBER`, or
`shield NAME=VALUE …` with options of `Auto`. An optimizer is AdamW or SGD (with momentum), and a
rate. With --grid, 6 apertures x 3 rates are tried on validation data with seed 0, and the best pair
runs with all seeds.

    python -m benchmarks.untuned --device cuda                     # run what the table lacks
    python -m benchmarks.untuned --sequences digits --grid --out out/untuned.csv
    python -m benchmarks.untuned --sequences "permuted x40" --optimizers "AdamW 0.001" \\
        --methods shield "shield room=0" "shield room=0.4" --out out/room.csv
    python -m benchmarks.untuned --table                           # print the table of the docs

A run takes seconds with digits, and up to minutes with MNIST or Fashion-MNIST.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from statistics import mean
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
    train,
)
from conceptors import Auto, LayerInputs, Readout, Shield
from conceptors.scenarios import Split, build

Part = tuple[Tensor, Tensor]  # inputs and targets
KEY = ("sequence", "optimizer", "method", "seed")
METHODS = ("plain", "shield", "readout", "joint")
OPTIMIZERS = ("AdamW 0.001", "SGD 0.1")
APERTURES = (1, 3, 9, 27, 81, 243)
FACTORS = (0.3, 1.0, 3.0)  # of the rate, for --grid
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


class RowReader(nn.Module):
    """A recurrent network that reads an 8 x 8 image row by row."""

    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        super().__init__()
        self.body, self.head = kind(8, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.body(x.view(-1, 8, 8))
        result: Tensor = self.head(states[:, -1])
        return result


# --- tasks --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """Training, validation and test data; with `outputs` the task has its own head."""

    train: Part
    validation: Part
    test: Part
    outputs: Tensor | None = field(default=None, kw_only=True)

    def to(self, device: torch.device) -> Task:
        parts = (self.train, self.validation, self.test)
        outputs = None if self.outputs is None else self.outputs.to(device)
        return Task(*((x.to(device), y.to(device)) for x, y in parts), outputs=outputs)

    def head(self, out: Tensor, y: Tensor) -> Part:
        """Outputs and targets of this task's head."""
        if self.outputs is None:
            return out, y
        return out[:, self.outputs], torch.searchsorted(self.outputs, y)


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


def scenario_tasks(name: str, heads: bool = False, offset: int = 0, **more: Any) -> list[Task]:
    """The tasks of a scenario of the package, whole in memory."""

    def part(split: Split) -> Part:
        x, y = split.take(torch.arange(len(split)))
        return x.flatten(1), y + offset

    tasks = []
    for task in build(name, 0, **more).tasks:
        outputs = torch.arange(10) + offset
        if heads and task.classes is not None:
            outputs = task.classes.nonzero().flatten() + offset
        parts = (part(task.train), part(task.validation), part(task.test))
        tasks.append(Task(*parts, outputs=outputs if heads else None))
    return tasks


def two_sets() -> list[Task]:
    """MNIST, then Fashion-MNIST, each with its own ten outputs."""
    first = scenario_tasks("disjoint-mnist", heads=True, tasks=1, limit=6_000)
    return first + scenario_tasks("disjoint-fashion", heads=True, tasks=1, limit=6_000, offset=10)


def subspaces() -> list[Task]:
    """A smooth function of five numbers, in another five of twenty dimensions each time."""
    draw = torch.Generator().manual_seed(0)
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


def intervals() -> list[Task]:
    """One function of one number, learned on one quarter of its range after the other."""
    draw = torch.Generator().manual_seed(0)
    tasks = []
    for number in range(4):
        parts = []
        for count in (256, 64, 128):
            x = number - 2.0 + torch.rand(count, 1, generator=draw)
            parts.append((x, torch.sin(3 * x) + 0.5 * x))
        tasks.append(Task(*parts))
    return tasks


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

    def loss(self, task: Task, out: Tensor, y: Tensor) -> Tensor:
        if self.regression:
            return functional.mse_loss(out, y)
        return functional.cross_entropy(*task.head(out, y))

    @torch.no_grad()
    def score(self, model: nn.Module, task: Task, part: Part) -> float:
        """Accuracy in percent or 100 R²; 0 if the outputs are not finite."""
        model.eval()
        out = torch.cat([model(x) for x in part[0].split(1000)])
        model.train()
        if not bool(out.isfinite().all()):
            return 0.0
        if self.regression:
            variance = (part[1] - part[1].mean()).square().mean()
            return 100 * float(1 - (out - part[1]).square().mean() / variance)
        out, y = task.head(out, part[1])
        return 100 * float((out.argmax(1) == y).float().mean())


SMALL = partial(mlp, 64, 128, 10)
LARGE = partial(mlp, 784, 800, 10)
MNIST = partial(scenario_tasks, "disjoint-mnist")
FASHION = partial(scenario_tasks, "disjoint-fashion")
SEQUENCES = {
    "digits 5x2, pixels 0-1": Case(lambda: digit_tasks(PAIRS), SMALL),
    "digits 5x2, pixels 0-16": Case(lambda: digit_tasks(PAIRS, "0-16"), SMALL),
    "digits 5x2, z-scored": Case(lambda: digit_tasks(PAIRS, "z"), SMALL),
    "digits 2x5": Case(lambda: digit_tasks(HALVES), SMALL),
    "digits, one class per task": Case(lambda: digit_tasks(SINGLE), SMALL),
    "digits 5x2, growing head": Case(lambda: digit_tasks(PAIRS), Growing, grows=True),
    "digits permuted x5": Case(lambda: permuted_digits(5), SMALL),
    "regression, four subspaces": Case(
        subspaces, partial(mlp, 20, 128, 128, 1), epochs=60, regression=True
    ),
    "regression, 1-D by intervals": Case(
        intervals, partial(mlp, 1, 128, 128, 1, activation=nn.Tanh), epochs=150, regression=True
    ),
    "MNIST 2x5": Case(partial(MNIST, tasks=2), LARGE, epochs=5, batch=64),
    "MNIST 5x2": Case(partial(MNIST, tasks=5), LARGE, epochs=2, batch=64),
    "MNIST 10x1": Case(partial(MNIST, tasks=10), LARGE, epochs=2, batch=64),
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
MORE = {  # behind single statements of the docs; run by name
    "digits 2x5, 5 epochs": Case(
        lambda: digit_tasks(HALVES), partial(mlp, 64, 256, 10), epochs=5, batch=64
    ),
    "digits 2x5, 10 epochs": Case(
        lambda: digit_tasks(HALVES), partial(mlp, 64, 256, 10), epochs=10, batch=64
    ),
    **{
        f"digits 2x5, {kind.__name__}": Case(
            lambda: digit_tasks(HALVES), partial(RowReader, kind), epochs=30, batch=64
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    "digits permuted x40": Case(
        lambda: permuted_digits(40), partial(mlp, 64, 200, 200, 10), epochs=3
    ),
    "Fashion 2x5": Case(partial(FASHION, tasks=2), LARGE, epochs=2, batch=128),
}
ALL = SEQUENCES | MORE


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
    return Shield(model, Auto(**{name: float(value) for name, value in chosen.items()}))


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
    sequence: Case, method: str, optimizer_name: str, seed: int, device: torch.device
) -> dict[str, list[float]]:
    """Scores of all tasks after the last one, and test scores right after each task."""
    tasks = [task.to(device) for task in sequence.tasks()]
    torch.manual_seed(seed)
    model: Any = sequence.model().to(device)
    if method == "joint" and sequence.grows:
        model.grow(2 * (len(tasks) - 1))
    shield = make_shield(method, model)
    readout = Closed(model, tasks[0].train[0][:2]).to(device) if method == "readout" else None
    optimizer = make_optimizer(optimizer_name, model)
    if shield is not None:
        shield.guard(optimizer)
    learned: list[float] = []
    for number, group in enumerate([tasks] if method == "joint" else [[task] for task in tasks]):
        is_fixed = readout is not None and number > 0
        if number and sequence.grows and not is_fixed:
            model.grow(2)
            optimizer = make_optimizer(optimizer_name, model)
            if shield is not None:
                shield.guard(optimizer)
        if not is_fixed and not _train(sequence, model, optimizer, group):
            nothing = [0.0] * len(tasks)  # diverged: its outputs are chance
            return {"validation": nothing, "test": nothing, "learned": nothing}
        if readout is not None:
            readout.learn(group[0].train)
        learned += [sequence.score(readout or model, task, task.test) for task in group]
        if shield is not None:
            shield.remember(group[0].train[0])
    return {
        "validation": [sequence.score(readout or model, task, task.validation) for task in tasks],
        "test": [sequence.score(readout or model, task, task.test) for task in tasks],
        "learned": learned,
    }


def _train(sequence: Case, model: nn.Module, optimizer: Optimizer, tasks: list[Task]) -> bool:
    """Train on one task, or on several mixed; whether the loss stayed finite."""
    x = torch.cat([task.train[0] for task in tasks])
    y = torch.cat([task.train[1] for task in tasks])
    owner = torch.repeat_interleave(
        torch.arange(len(tasks)), torch.tensor([len(task.train[1]) for task in tasks])
    ).to(x.device)

    def loss(indices: Tensor) -> Tensor:
        indices = indices.to(x.device)
        out = model(x[indices])
        if len(tasks) == 1 or tasks[0].outputs is None:
            return sequence.loss(tasks[0], out, y[indices])
        total: Tensor = out.new_zeros(())
        for number, task in enumerate(tasks):
            is_here = owner[indices] == number
            if bool(is_here.any()):
                share = is_here.float().mean()
                total = total + share * sequence.loss(task, out[is_here], y[indices][is_here])
        return total

    model.train()
    return train(optimizer, loss, len(x), epochs=sequence.epochs, batch=sequence.batch)


# --- the table ----------------------------------------------------------------------------


def run(table: Table, name: str, optimizer: str, method: str, seed: int, device: Any) -> None:
    """Add one run to the table unless it is in it."""
    key = {"sequence": name, "optimizer": optimizer, "method": method, "seed": seed}
    if key in table:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # full layers are part of the question
        scores = learn(ALL[name], method, optimizer, seed, device)
    row: Row = {**key, "score": round(mean(scores["test"]), 4)}
    row |= {"validation": round(mean(scores["validation"]), 4)}
    row |= {"final_scores": numbers(scores["test"]), "learned": numbers(scores["learned"])}
    table.add(row | environment(device))
    say(f"{name} | {optimizer} | {method} | seed {seed}: {row['score']:.1f}")


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
    """One table per optimizer; the columns are methods."""
    extra = dict.fromkeys(row["method"] for row in table.rows if " " in row["method"])
    methods = [*METHODS, *(name for name in extra if name.startswith("shield "))]
    parts = []
    for optimizer in optimizers:
        rows = []
        for name in names:
            here = {"sequence": name, "optimizer": optimizer}
            cells = [mean_and_std(table.values("score", **here, method=m), 1) for m in methods]
            best = best_of_grid(table, name, optimizer)
            values = best and table.values(
                "score", sequence=name, optimizer=best[0], method=best[1]
            )
            if set(cells) != {"–"}:
                rows.append([name, *cells, mean_and_std(values or [], 1)])
        heading = ["sequence", *(f"`{m}`" for m in methods), "best of the grid"]
        parts.append(f"**{optimizer}**\n\n{markdown(heading, rows)}")
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/untuned.csv")
    parser.add_argument(
        "--sequences",
        nargs="+",
        metavar="PART",
        help="names or parts of names (default: the 16 of the docs)",
    )
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), metavar='"NAME RATE"')
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--grid", action="store_true", help="also try 6 apertures x 3 rates")
    asked = parser.parse_args(arguments)
    names = list(SEQUENCES)
    if asked.sequences:
        names = [name for name in ALL if any(part in name for part in asked.sequences)]
    if asked.tiny:
        names = ["digits, one class per task"]
        ALL[names[0]] = Case(lambda: digit_tasks(HALVES), partial(mlp, 64, 8, 10), epochs=1)
    if not names:
        parser.error(f"no sequence has this in its name; there are {', '.join(ALL)}")
    table, device = Table(asked.out, KEY), find_device(asked.device)
    seeds = range(asked.seeds or 3)
    for name in () if asked.table else names:
        for optimizer in asked.optimizers:
            for method in asked.methods:
                for seed in seeds:
                    run(table, name, optimizer, method, seed, device)
            for rate, method in grid(name, optimizer) if asked.grid else ():
                run(table, name, rate, method, 0, device)
            if asked.grid and (best := best_of_grid(table, name, optimizer)):
                for seed in seeds:
                    run(table, name, *best, seed, device)
    print(tables(table, names, asked.optimizers))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
