"""step-mlp: the paper's network on digits 5 to 9 after 0 to 4, plain SGD, on the CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.bench import models
from conceptors.bench.data import digits
from conceptors.bench.recipes import Batch, Recipe
from conceptors.bench.row import Row, Size, aim, pick
from conceptors.bench.steps import step_rows

TARGETS = {64: 1.5, 300: 1.35}


def step_mlp(size: Size, device: torch.device) -> list[Row]:
    """Shielded against plain steps of 784-800-10 with batches of 64 and 300, hard and soft."""
    where, x, y = digits(size)
    hidden = pick(size, 20, 800, 800)
    found = []
    for count, target in TARGETS.items():
        recipe = Recipe(
            name=f"784-{hidden}-10",
            setting=f"batch {count}, SGD, inputs projected, aperture 9, {where}, "
            f"{torch.get_num_threads()} threads",
            device=device,
            model=partial(models.mlp, hidden=hidden),
            batch=partial(_batch, _halves(x.to(device), y.to(device)), count),
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            rank=None,
            project="inputs",
            loss=_squares,
            remembered=max(1, pick(size, 200, 6000, 30_000) // count),
            steps=pick(size, 5, 200, 500),
        )
        for hard in (True, False):  # as the paper has it for disjoint MNIST, and soft
            found += step_rows(
                "step-mlp",
                replace(recipe, hard=hard),
                size,
                aim(target, size, device, "cpu"),
                rows=count,
            )
    return found


def _halves(x: Tensor, y: Tensor) -> tuple[Batch, Batch]:
    """Digits 0 to 4, and 5 to 9, with targets as one-hot rows."""
    hot = functional.one_hot(y, 10).float()
    return (x[y < 5], hot[y < 5]), (x[y >= 5], hot[y >= 5])


def _batch(tasks: tuple[Batch, Batch], count: int, seed: int) -> Batch:
    x, y = tasks[seed >= 1000]
    chosen = torch.randint(len(x), (count,), generator=torch.Generator().manual_seed(seed))
    return x[chosen.to(x.device)], y[chosen.to(x.device)]


def _squares(out: Tensor, y: Tensor) -> tuple[Tensor, Tensor | None]:
    """Half the squared error."""
    return (out - y).square().sum(1).mean() / 2, None
