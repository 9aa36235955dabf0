"""A shielded step against a plain one, of the same network from the same weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

from torch import nn

from conceptors import Shield
from conceptors.bench.ceilings import measure_ceilings
from conceptors.bench.floor import least_seconds, ranks
from conceptors.bench.measure import effort, side_by_side
from conceptors.bench.protection import Protection, drift, leak, outputs
from conceptors.bench.recipes import Recipe, Trainer
from conceptors.bench.row import Row, Size
from conceptors.shield.room import ShieldFullWarning


def learned(recipe: Recipe) -> nn.Module:
    """The network after some plain steps on the first task."""
    model = recipe.build()
    trainer = Trainer.of(recipe, model, recipe.optimizer(model), recipe.old())
    for _ in range(recipe.steps):
        trainer.step()
    return model


def shielded(recipe: Recipe, model: nn.Module, hard: bool = False) -> Shield:
    """A shield that remembers the first task."""
    hard = hard or recipe.hard
    shield = Shield(model, recipe.aperture, rank=recipe.rank, hard=hard, project=recipe.project)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShieldFullWarning)  # made-up data may fill a small layer
        shield.remember(recipe.old(), feed=recipe.feed)
    return shield


def freeze_statistics(model: nn.Module) -> bool:
    """Put BatchNorm layers into evaluation, as the shield does; whether there are any."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
    for layer in layers:
        layer.eval()
    return bool(layers)


def protection(recipe: Recipe, first: nn.Module) -> Protection:
    """What a few steps on the second task do to the first, in this setting."""
    x = recipe.old()[0][0][:8]
    plain, soft, hard = (copy.deepcopy(first) for _ in range(3))
    if freeze_statistics(plain):  # as the shield does
        freeze_statistics(first)
    shields = {False: shielded(recipe, soft), True: shielded(recipe, hard, hard=True)}
    for model in (plain, soft, hard):
        optimizer = recipe.optimizer(model)
        for shield in shields.values():
            if shield.model is model:
                shield.guard(optimizer)
        trainer = Trainer.of(recipe, model, optimizer, recipe.new())
        for _ in range(recipe.steps):
            trainer.step()
    before = outputs(first, x)
    found = Protection(
        drift(before, outputs(soft, x)),
        drift(before, outputs(plain, x)),
        leak(shields[True], first, plain),
    )
    for shield in shields.values():
        shield.detach()
    return found


def step_rows(
    what: str, recipe: Recipe, size: Size, target: float | None, rows: int | None = None
) -> list[Row]:
    """Shielded against plain steps, with floor and protection; a row, or two with BatchNorm.

    `rows`: input rows a layer sees in a batch, where the floor may count their projection.
    """
    device, first = recipe.device, learned(recipe)
    kept = protection(recipe, copy.deepcopy(first))
    named: dict[str, nn.Module] = {"plain": first, "shielded": copy.deepcopy(first)}
    frozen = copy.deepcopy(first)
    if freeze_statistics(frozen):
        named["frozen"] = frozen
    shield = shielded(recipe, named["shielded"])
    optimizers = {name: recipe.optimizer(model) for name, model in named.items()}
    shield.guard(optimizers["shielded"])
    batches = recipe.new()
    calls: dict[str, Callable[[], object]] = {
        name: Trainer.of(recipe, model, optimizers[name], batches).step
        for name, model in named.items()
    }
    found = side_by_side(calls, device, **effort(size, device))

    ceilings = measure_ceilings(device, size)
    claimed = ranks(shield)
    model = named["shielded"]
    floor = least_seconds(model, claimed, ceilings, rows=rows)
    measured = []
    baselines = {"plain": "", "frozen": " (plain with BatchNorm statistics frozen too)"}
    for name, note in baselines.items():
        if name not in found:
            continue
        ratio, low, high = found["shielded"].against(found[name])
        added = found["shielded"].median - found[name].median
        notes = {
            "ratio_quartiles": [low, high],
            "plain_quartiles": found[name].quartiles,
            "shielded_quartiles": found["shielded"].quartiles,
            "steps": found["shielded"].calls,
            "added_seconds": added,
            "floor_seconds_float32": least_seconds(
                model, claimed, ceilings, rows=rows, rate=ceilings.float32
            ),
            "mean_quota": sum(shield.quota().values()) / len(shield.quota()),
        }
        measured.append(
            Row(
                what,
                f"{recipe.name} {recipe.setting}, rank {recipe.rank}"
                f"{', hard' if recipe.hard else ''}{note}",
                plain=found[name].median,
                ours=found["shielded"].median,
                ratio=ratio,
                target=target,
                floor=floor,
                share=floor / added if added > 0 else None,
                drift=kept.drift,
                drift_plain=kept.drift_plain,
                leak=kept.leak,
                notes=notes,
            )
        )
    shield.detach()
    return measured
