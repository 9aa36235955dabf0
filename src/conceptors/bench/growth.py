"""growth, tasks: how time and memory of a step grow with width, rank, batch and number of tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.bench import data, models
from conceptors.bench.ceilings import measure_ceilings
from conceptors.bench.floor import least_seconds, ranks
from conceptors.bench.measure import compared, effort, peak_memory, release, side_by_side
from conceptors.bench.recipes import Batch, Recipe, Trainer
from conceptors.bench.row import Row, Size, aim, pick

_LAYERS = 4


def growth(size: Size, device: torch.device) -> list[Row]:
    """Four square Linear layers, AdamW: one row per point of each curve."""
    cuda = device.type == "cuda"
    middle: dict[str, Any] = {
        "width": pick(size, 8, 1024 if cuda else 256, 1024),
        "rank": 0.1,
        "batch": pick(size, 8, 1024 if cuda else 64, 4096 if cuda else 256),
        "tasks": 1,
    }
    widest = 4096 if cuda or size == "full" else 512
    curves: dict[str, list[Any]] = {
        "width": pick(size, [8, 16], [], []) or _doubling(256 if widest == 4096 else 64, widest),
        "rank": pick(size, [0.1, 1.0], [0.05, 0.1, 0.25, 1.0], [0.02, 0.05, 0.1, 0.2, 0.5, 1.0]),
        "batch": pick(size, [4], [], []) or _doubling(middle["batch"] // 8, middle["batch"] * 4),
        "tasks": pick(size, [1, 2], [1, 3, 10], [1, 2, 5, 10, 20]),
    }
    found = []
    for name, values in curves.items():
        for value in values:
            found.append(_point(name, value, {**middle, name: value}, size, device))
            release(device)
    return found


def _doubling(first: int, last: int) -> list[int]:
    values = [first]
    while values[-1] * 2 <= last:
        values.append(values[-1] * 2)
    return values


def _point(curve: str, value: Any, at: dict[str, Any], size: Size, device: torch.device) -> Row:
    width, count = at["width"], at["batch"]

    def batch(seed: int) -> Batch:
        source = torch.Generator(device).manual_seed(seed)
        few = max(1, width // 20)
        low = torch.randn(count, few, generator=source, device=device)
        basis = torch.randn(few, width, generator=source, device=device)
        return low @ basis / few**0.5, torch.arange(count, device=device) % width

    recipe = Recipe(
        name=f"{_LAYERS} x {width}",
        setting=f"rank {at['rank']}, batch {count}, {at['tasks']} tasks, AdamW",
        size=size,
        device=device,
        model=partial(models.mlp, *[width] * (_LAYERS + 1), activation=nn.GELU),
        batch=batch,
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True),
        rank=at["rank"],
        aperture="auto",
    )
    batches = recipe.new()

    def build(protected: bool) -> Trainer:
        model = recipe.build()
        tasks = ([recipe.batch(task)] for task in range(at["tasks"]))
        shield = recipe.shielded(model, tasks) if protected else None
        return Trainer(recipe, model, batches, shield)

    plain, ours = build(False), build(True)
    rounds = effort("tiny" if size == "tiny" else "quick", device)
    times = side_by_side({"plain": plain.step, "ours": ours.step}, device, **rounds)
    assert ours.shield is not None
    floor = least_seconds(ours.model, ranks(ours.shield), measure_ceilings(device, size))
    del plain, ours
    release(device)
    memory = None
    if device.type == "cuda":
        memory = {}
        for name, protected in (("plain", False), ("ours", True)):
            memory[name] = peak_memory(lambda: build(protected).step, device)  # noqa: B023
            release(device)
    notes = {"curve": curve, "value": value, "peak_bytes": memory}
    row = Row("growth", f"{recipe.name}, {recipe.setting}", floor=floor, notes=notes)
    return compared(row, times["ours"], times["plain"])


def tasks(size: Size, device: torch.device) -> list[Row]:
    """A step of 784-800-10 after a hundred tasks against one after ten, dense and rank 0.1.

    Every task is the same few made-up images with its own order of pixels.
    """
    few, many = pick(size, (2, 4), (10, 100), (10, 100))
    side, hidden = pick(size, (6, 12), (14, 200), (28, 800))
    base = data.images(32, 1, side, seed=0, device=device).flatten(1)

    def task(number: int) -> list[Tensor]:
        order = torch.randperm(side**2, generator=torch.Generator().manual_seed(number))
        return [base[:, order.to(device)]]

    found = []
    for rank in (None, 0.1):
        recipe = Recipe(
            name=f"{side**2}-{hidden}-10",
            setting="batch 64, SGD",
            size=size,
            device=device,
            model=partial(models.mlp, side**2, hidden, 10, activation=nn.Sigmoid),
            batch=lambda seed: (base.repeat(2, 1), torch.arange(64, device=device) % 10),
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
            rank=rank,
            aperture="auto",
        )
        steps = {}
        for count in (few, many):
            model = recipe.build()
            shield = recipe.shielded(model, [[task(i)] for i in range(count)])
            steps[str(count)] = Trainer(recipe, model, recipe.new(), shield).step
        times = side_by_side(steps, device, **effort(size, device))
        about = f"{recipe}, rank {rank}: after {many} tasks, against {few}"
        row = Row("tasks", about, target=aim(1.05, size, device, "cpu cuda"))
        found.append(compared(row, times[str(many)], times[str(few)]))
    return found
