"""Measure `Shield(model)` with default settings on sequences that people try first.

All methods use the loop of the quickstart, cross-entropy (squared error for regression), and one
optimizer at a usual rate. Scores are means over tasks: test accuracy in percent, or 100 R².

A method is `plain`, `joint` (all tasks at once), `readout` (the first task trains the network; a
closed-form readout of its input and layers learns all tasks), `replay SAMPLES` (a reservoir of past
samples is half of each batch), `shield`, `aperture NUMBER`, or `shield NAME=VALUE …` with options
of `Auto`. `shield remember_every=SHARE` knows no task boundaries, and remembers whenever this share
of the first task's steps has passed. An optimizer is AdamW or SGD (with momentum), and a rate. The
table shows the aperture and rate with the best validation score of seed 0 as "best of the grid".

    python -m benchmarks.untuned --device cuda                     # run what the table lacks
    python -m benchmarks.untuned --quick --seeds 1 --methods plain shield "replay 200" \\
        --out out/quick.csv
    python -m benchmarks.untuned --sequences "permuted x40" --optimizers "AdamW 0.001" \\
        --methods shield "shield room=0" "shield room=0.4" --out out/room.csv
    python -m benchmarks.untuned --sequences digits online --optimizers "AdamW 0.001" --seeds 2 \\
        --methods shield "shield remember_every=0.25" "replay 200" plain --out out/every.csv
    python -m benchmarks.untuned --table                           # print the tables of the docs

A run with --quick takes up to 40 seconds on one CPU core, others take minutes.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from statistics import mean, median
from typing import Any

import torch
from torch import Generator, Tensor, nn
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
from benchmarks.sequences import QUICK, SEQUENCES, Case, Part, Task, training_samples
from conceptors import Auto, LayerInputs, Readout, Shield

Curve = list[tuple[int, float]]  # steps and validation scores of the task that is being learned
KEY = ("sequence", "optimizer", "method", "seed")
METHODS = ("plain", "shield", "readout", "joint")
OPTIMIZERS = ("AdamW 0.001", "SGD 0.1")
STEPS = {round(2 ** (i / 4)) for i in range(80)}  # after which the validation score is measured
SPEED = (
    "Score right after each task, and steps to 90 % of plain training's best validation score as a "
    "multiple of plain training's steps (median over later tasks)"
)


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


def reservoir(tasks: list[Task], size: int) -> list[Tensor]:
    """The training samples that reservoir sampling keeps: those with the largest random keys."""
    keys = [
        torch.rand(len(t.train[1]), generator=Generator().manual_seed(i))
        for i, t in enumerate(tasks)
    ]
    chosen = torch.cat(keys).topk(min(size, sum(map(len, keys)))).indices
    return [part[chosen] for part in training_samples(tasks)]


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


def loss(out: Tensor, y: Tensor, heads: Tensor) -> Tensor:
    """Squared error or cross-entropy of the outputs that `heads` marks for each sample."""
    if y.is_floating_point():
        errors = (out - y).square()
        return (errors if out.shape == y.shape else errors[heads]).mean()
    heads = heads[:, : out.shape[1]]  # a readout outputs only the classes so far
    return functional.cross_entropy(out.masked_fill(~heads, -math.inf), y)


@torch.no_grad()
def score(model: nn.Module, task: Task, part: Part) -> float:
    """Accuracy in percent or 100 R²; 0 if the outputs are not finite."""
    model.eval()
    x, y, heads = task.samples(part)
    out = torch.cat([model(inputs) for inputs in x.split(1000)])
    model.train()
    if not bool(out.isfinite().all()):
        return 0.0
    if y.is_floating_point():
        return 100 * float(1 - loss(out, y, heads) / (y - y.mean(0)).square().mean())
    out = out.masked_fill(~heads[:, : out.shape[1]], -math.inf)
    return 100 * float((out.argmax(1) == y).float().mean())


def train(
    case: Case,
    model: nn.Module,
    optimizer: Optimizer,
    tasks: list[Task],
    memory: list[Tensor],
    patience: int,
) -> Curve:
    """Train on one task, or on several mixed; the curve is empty if the loss became infinite."""
    samples, value = training_samples(tasks), torch.zeros(())
    curve: Curve = []
    scores: list[float] = []

    def now() -> float:
        parts = ((x[:500], y[:500]) for x, y in (task.validation for task in tasks))
        return mean(score(model, task, part) for task, part in zip(tasks, parts))

    step = 0
    for _ in range(case.epochs):
        for indices in torch.randperm(len(samples[0])).split(case.batch):
            batch = [part[indices] for part in samples]
            if memory:
                past = torch.randint(len(memory[0]), (len(indices),))
                batch = [torch.cat([new, old[past]]) for new, old in zip(batch, memory)]
            optimizer.zero_grad()
            value = loss(model(batch[0]), *batch[1:])
            value.backward()
            optimizer.step()
            step += 1
            if step in STEPS:
                curve.append((step, round(now(), 1)))
        scores += [now()] if patience else []
        if patience and max(scores[-patience:]) <= max(scores[:-patience], default=-math.inf):
            break
    return [*curve, (step, round(now(), 1))] if math.isfinite(float(value.detach())) else []


def learn(
    case: Case, method: str, optimizer_name: str, seed: int, device: torch.device, patience: int = 0
) -> dict[str, Any]:
    """Scores of all tasks after the last one; test scores and curves of each task when learned."""
    tasks = case.load(device)
    torch.manual_seed(seed)
    model = case.model().to(device)
    shield = make_shield(method, model)
    replayed = int(method.split()[1]) if method.startswith("replay ") else 0
    readout = Closed(model, tasks[0].train[0][:2]).to(device) if method == "readout" else None
    optimizer = make_optimizer(optimizer_name, model)
    every = None
    if "remember_every=" in method:
        steps = case.epochs * math.ceil(len(tasks[0].train[1]) / case.batch)
        every = max(1, round(float(method.partition("remember_every=")[2].split()[0]) * steps))
    if shield is not None:
        shield.guard(optimizer, remember_every=every)
    learned: list[float] = []
    curves: list[Curve] = []
    for number, group in enumerate([tasks] if method == "joint" else [[task] for task in tasks]):
        if readout is None or not number:
            memory = reservoir(tasks[:number], replayed) if number and replayed else []
            curves.append(train(case, model, optimizer, group, memory, patience))
            if not curves[-1]:
                nothing = [0.0] * len(tasks)  # diverged: its outputs are chance
                return {"validation": nothing, "test": nothing, "learned": nothing, "curves": []}
        if readout is not None:
            readout.learn(group[0].train)
        learned += [score(readout or model, task, task.test) for task in group]
        if shield is not None and every is None:
            shield.remember(group[0].train[0])
    return {
        "validation": [score(readout or model, task, task.validation) for task in tasks],
        "test": [score(readout or model, task, task.test) for task in tasks],
        "learned": learned,
        "curves": curves,
    }


# --- the tables ---------------------------------------------------------------------------


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
    row |= {"mean_learned": round(mean(scores["learned"]), 4)}
    row["curves"] = json.dumps(scores["curves"], separators=(",", ":"))
    row["seconds"] = round(time.process_time() - start, 1)
    table.add(row | environment(device))
    say(f"{name} | {optimizer} | {label} | seed {seed}: {row['score']:.1f}, {row['seconds']} s")


def best_of_grid(table: Table, name: str, optimizer: str) -> list[float]:
    """Scores of the aperture and rate with the best validation score of seed 0."""
    tried = [
        row
        for row in table.rows
        if (row["sequence"], str(row["seed"])) == (name, "0")
        and row["optimizer"].startswith(optimizer.partition(" ")[0])
        and row["method"].startswith("aperture")
    ]
    if not tried:
        return []
    best = max(tried, key=lambda row: float(row["validation"]))
    return table.values("score", **{key: best[key] for key in KEY[:3]})


def steps90(curve: Curve, of_plain: Curve) -> float:
    """Steps to 90 % of plain training's best validation score."""
    target = 0.9 * max(value for _, value in of_plain)
    return next((step for step, value in curve if value >= target > 0), math.inf)


def speed(table: Table, name: str, optimizer: str, method: str) -> str:
    """The median of `steps90` over later tasks, as a multiple of plain training's steps."""
    curves = {
        (row["method"], row["seed"]): json.loads(row["curves"])
        for row in table.rows
        if (row["sequence"], row["optimizer"]) == (name, optimizer) and row.get("curves")
    }
    plain = "plain" + "".join(method.partition(",")[1:])  # with the same patience
    ratios = [
        steps90(curve, of_plain) / steps90(of_plain, of_plain)
        for (label, seed), of_tasks in curves.items()
        if label == method and (plain, seed) in curves
        for curve, of_plain in list(zip(of_tasks, curves[plain, seed]))[1:]
        if steps90(of_plain, of_plain) < math.inf  # plain training learned it at all
    ]
    return f", {median(ratios):.1f}".replace("inf", "never") if ratios else ""


def tables(table: Table, names: Sequence[str], optimizers: Sequence[str]) -> str:
    """Two tables per optimizer, final scores and speed of learning; the columns are methods."""
    others = dict.fromkeys(row["method"] for row in table.rows if row["method"] not in METHODS)
    methods = [*METHODS, *(name for name in others if not name.startswith("aperture"))]
    heading = ["sequence", *(f"`{method}`" for method in methods)]
    parts = []
    for optimizer in optimizers:
        rows, speeds = [], []
        for name in names:
            keys = [{"sequence": name, "optimizer": optimizer, "method": m} for m in methods]
            cells = [mean_and_std(table.values("score", **key), 1) for key in keys]
            if set(cells) != {"–"}:
                rows.append([name, *cells, mean_and_std(best_of_grid(table, name, optimizer), 1)])
            cells = [mean_and_std(table.values("mean_learned", **key), 1) for key in keys]
            if set(cells) != {"–"}:
                times = [speed(table, name, optimizer, method) for method in methods]
                speeds.append([name, *(cell + time for cell, time in zip(cells, times))])
        parts.append(f"**{optimizer}**\n\n{markdown([*heading, 'best of the grid'], rows)}")
        parts += [f"{SPEED}\n\n{markdown(heading, speeds)}"] if speeds else []
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/untuned.csv")
    about = "names or parts of names (default: all)"
    parser.add_argument("--sequences", nargs="+", default=[""], metavar="PART", help=about)
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), metavar='"NAME RATE"')
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD")
    parser.add_argument("--quick", action="store_true", help="only sequences of seconds on a CPU")
    about = "end a task when its validation score has not risen for so many epochs"
    parser.add_argument("--early-stopping", type=int, default=0, metavar="PATIENCE", help=about)
    asked = parser.parse_args(arguments)
    names = [
        name
        for name in (QUICK if asked.quick else SEQUENCES)
        if any(part in name for part in asked.sequences)
    ]
    if asked.tiny:
        names = ["digits 2x5"]
        SEQUENCES[names[0]] = replace(SEQUENCES[names[0]], epochs=1)
    if not names:
        parser.error(f"no sequence has this in its name; there are {', '.join(SEQUENCES)}")
    table, device = Table(asked.out, KEY), find_device(asked.device)
    runs = product(names, asked.optimizers, asked.methods, range(asked.seeds or 3))
    for key in () if asked.table else runs:
        run(table, *key, device, asked.early_stopping)
    print(tables(table, names, asked.optimizers))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
