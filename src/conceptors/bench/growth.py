"""growth: how time and memory of a step grow with width, rank, batch and number of tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conceptors import Shield
from conceptors.bench import models
from conceptors.bench.ceilings import measure_ceilings
from conceptors.bench.floor import least_seconds, ranks
from conceptors.bench.measure import effort, peak_memory, release, side_by_side
from conceptors.bench.recipes import Recipe, Trainer
from conceptors.bench.row import Row, Size, pick
from conceptors.shield.room import ShieldFullWarning

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

    def rows(seed: int) -> Tensor:
        source = torch.Generator(device).manual_seed(seed)
        few = max(1, width // 20)
        low = torch.randn(count, few, generator=source, device=device)
        basis = torch.randn(few, width, generator=source, device=device)
        found: Tensor = low @ basis / few**0.5
        return found

    recipe = Recipe(
        name=f"{_LAYERS} x {width}",
        setting=f"rank {at['rank']}, batch {count}, {at['tasks']} tasks, AdamW",
        device=device,
        model=lambda: models.stack(width, _LAYERS),
        batch=lambda seed: (rows(seed), torch.arange(count, device=device) % width),
        optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True),
        rank=at["rank"],
    )
    batches = recipe.new()

    def build(protected: bool) -> Callable[[], Shield | None]:
        model = recipe.build()
        optimizer = recipe.optimizer(model)
        shield = Shield(model, rank=recipe.rank) if protected else None
        if shield is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ShieldFullWarning)
                for task in range(at["tasks"]):
                    shield.remember(rows(task))
            shield.guard(optimizer)
        trainer = Trainer.of(recipe, model, optimizer, batches)

        def step() -> Shield | None:
            trainer.step()
            return shield  # lives as long as the step does

        return step

    steps = {"plain": build(False), "ours": build(True)}
    times = side_by_side(steps, device, **effort("tiny" if size == "tiny" else "quick", device))
    ratio, low, high = times["ours"].against(times["plain"])
    shield = steps["ours"]()
    assert shield is not None
    floor = least_seconds(shield.model, ranks(shield), measure_ceilings(device, size))
    added = times["ours"].median - times["plain"].median
    del steps, shield
    release(device)
    memory = None
    if device.type == "cuda":
        memory = {}
        for name, protected in (("plain", False), ("ours", True)):
            memory[name] = peak_memory(lambda: build(protected), device)  # noqa: B023
            release(device)
    return Row(
        "growth",
        f"{recipe.name}, {recipe.setting}",
        plain=times["plain"].median,
        ours=times["ours"].median,
        ratio=ratio,
        floor=floor,
        share=floor / added if added > 0 else None,
        notes={
            "curve": curve,
            "value": value,
            "ratio_quartiles": [low, high],
            "peak_bytes": memory,
        },
    )
