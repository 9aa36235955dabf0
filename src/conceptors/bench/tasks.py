"""tasks: the time of a step does not grow with the number of tasks remembered."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from conceptors import Shield
from conceptors.bench import data, models
from conceptors.bench.measure import effort, side_by_side
from conceptors.bench.recipes import Recipe, Trainer
from conceptors.bench.row import Row, Size, aim, pick
from conceptors.shield.room import ShieldFullWarning


def tasks(size: Size, device: torch.device) -> list[Row]:
    """A step of 784-800-10 after a hundred tasks against one after ten, dense and rank 0.1.

    Every task is the same few made-up images with its own order of pixels.
    """
    few, many = pick(size, (2, 4), (10, 100), (10, 100))
    side, hidden = pick(size, (6, 12), (14, 200), (28, 800))
    base = data.images(32, 1, side, seed=0, device=device).flatten(1)

    def task(number: int) -> Tensor:
        order = torch.randperm(side**2, generator=torch.Generator().manual_seed(number))
        return base[:, order.to(device)]

    found = []
    for rank in (None, 0.1):
        recipe = Recipe(
            name=f"{side**2}-{hidden}-10",
            setting="batch 64, SGD",
            device=device,
            model=lambda: models.mlp(side**2, hidden),
            batch=lambda seed: (base.repeat(2, 1), torch.arange(64, device=device) % 10),
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01),
            rank=rank,
        )
        model = recipe.build()
        steps = {
            str(count): _step(recipe, copy.deepcopy(model), [task(i) for i in range(count)])
            for count in (few, many)
        }
        times = side_by_side(steps, device, **effort(size, device))
        ratio, low, high = times[str(many)].against(times[str(few)])
        found.append(
            Row(
                "tasks",
                f"{recipe.name} {recipe.setting}, rank {rank}: after {many} tasks, against {few}",
                plain=times[str(few)].median,
                ours=times[str(many)].median,
                ratio=ratio,
                target=aim(1.05, size, device, "cpu cuda"),
                notes={"ratio_quartiles": [low, high]},
            )
        )
    return found


def _step(recipe: Recipe, model: nn.Module, remembered: list[Tensor]) -> Callable[[], object]:
    shield = Shield(model, rank=recipe.rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShieldFullWarning)
        for rows in remembered:
            shield.remember(rows)
    optimizer = shield.guard(recipe.optimizer(model))
    step = Trainer.of(recipe, model, optimizer, recipe.new()).step

    def shielded() -> object:
        step()
        return shield  # lives as long as the step does

    return shielded
