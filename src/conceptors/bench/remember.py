"""remember-*: the pass that collects a task against one plain forward pass, and the factoring."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from conceptors import Shield
from conceptors.bench import recipes
from conceptors.bench.measure import release, timed
from conceptors.bench.recipes import Batch, Recipe
from conceptors.bench.row import Row, Size, aim, pick
from conceptors.shield.blocks import scan
from conceptors.shield.options import Protection
from conceptors.shield.remember.run import collect

COLLECT, FACTOR, SENTENCES = 1.3, 2.0, 0.4  # targets: times a forward pass; seconds; seconds
_POOL = 16  # different batches


def remember_minilm(size: Size, device: torch.device) -> list[Row]:
    """All of `remember` for two tasks of sentences: the second joins what is claimed."""
    recipe = recipes.minilm(size, device)
    model = recipe.learned()
    batches = [[recipe.batch(at + i) for i in range(recipe.remembered)] for at in (0, 1000)]
    spent: list[list[float]] = [[], []]
    for _ in range(1 + pick(size, 1, 2, 3)):  # the first warms up
        shield = Shield(model, aperture=recipe.aperture)
        shield.guard(recipe.optimizer(model))
        for own, task in zip(spent, batches):
            remember = partial(shield.remember, task, feed=recipe.feed)
            own.append(timed(remember, device))
        shield.detach()
    return [
        Row(
            "remember-minilm",
            f"{recipe}, {len(task)} batches, {which} task",
            ours=median(own[1:]),
            target=aim(SENTENCES, size, device),
            notes={"seconds": own},
        )
        for which, own, task in zip(("first", "second"), spent, batches)
    ]


def remember_rows(what: str, recipe: Recipe, most: int) -> list[Row]:
    """Two rows: collecting against a forward pass, and the rest of `remember`.

    `most`: batches at full size on a GPU.
    """
    device, size, model = recipe.device, recipe.size, recipe.learned()
    cuda = device.type == "cuda"
    count = pick(size, 2, 24 if cuda else 4, most if cuda else most // 8)
    pool = [recipe.batch(seed) for seed in range(min(_POOL, count))]
    batches = [pool[i % len(pool)] for i in range(count)]

    def forward() -> None:
        with torch.no_grad():
            for batch in batches:
                recipe.feed(model, batch)

    model.eval()
    forward()
    shields: list[Shield] = []

    def remember(task: list[Batch] = batches) -> None:
        shields.append(recipe.shielded(model, [task], guarded=True))

    remember(pool[:2])  # warm up too
    shields.pop().detach()
    collecting, factoring, passing = [], [], []
    for _ in range(pick(size, 1, 2, 3)):
        passing.append(timed(forward, device))
        collecting.append(collection_time(recipe, model, batches))
        factoring.append(max(0.0, timed(remember, device) - collecting[-1]))
        shields.pop().detach()
    ratio = median(collecting) / median(passing)
    error = _sampling_error(recipe, model, pool[: pick(size, 1, 1, 2)])
    release(device)
    setting = f"{recipe}, {count} batches"
    return [
        Row(
            what,
            f"{setting}: collecting against a forward pass",
            plain=median(passing),
            ours=median(collecting),
            ratio=ratio,
            target=aim(COLLECT, size, device),
            notes={"sampling": error, "passes": passing, "collections": collecting},
        ),
        Row(
            what,
            f"{setting}: factoring",
            ours=median(factoring),
            target=aim(FACTOR, size, device),
            notes={"factorings": factoring},
        ),
    ]


def collection_time(recipe: Recipe, model: nn.Module, batches: list[Batch]) -> float:
    """Seconds of the first part of `remember`: second moments of what enters every layer."""
    shield = Shield(model, aperture=recipe.aperture, rank=recipe.rank)
    protection = Protection(shield.aperture, shield.hard, shield.rank, shield.dense_limit)
    pass_over = partial(
        collect,
        model,
        scan(model, shield.exclude, shield.freeze).sites,
        batches,
        feed=recipe.feed,
        limit=None,
        rows=shield.rows,
        seed=shield.seed,
        dtype=shield.dtype,
        sketch=protection.sketch_rank,
        progress=False,
    )
    spent = timed(pass_over, recipe.device)
    shield.detach()
    return spent


def _sampling_error(recipe: Recipe, model: nn.Module, batches: list[Batch]) -> dict[str, Any]:
    """Conceptors from a sample of the rows against those from all of them, in a few layers.

    The largest difference of quotas, and of ‖C - C_all‖ / ‖C_all‖ over the layers.
    """
    whole = replace(recipe, rank=None)
    layers = [n for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    kept = {layers[0], layers[len(layers) // 2], layers[-1]}
    skipped = [n for n, m in model.named_modules() if n not in kept and not list(m.children())]
    found = []
    for rows in ("auto", None):
        shield = whole.shielded(model, [batches], exclude=skipped, rows=rows)
        found.append(shield.conceptors())
        shield.detach()
    sampled, every = found
    quota, matrix = 0.0, 0.0
    for name in every:
        a, b = sampled[name].matrix().double(), every[name].matrix().double()
        quota = max(quota, float((sampled[name].quota - every[name].quota).abs().max()))
        matrix = max(matrix, float((a - b).norm() / b.norm()))
    return {"layers": sorted(every), "quota": quota, "matrix": matrix, "batches": len(batches)}
