"""family: time added to a step of ResNet-18, ours against related methods."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from conceptors.bench import recipes
from conceptors.bench.ceilings import measure_ceilings
from conceptors.bench.floor import least_seconds, ranks
from conceptors.bench.measure import effort, side_by_side
from conceptors.bench.recipes import Recipe, Trainer
from conceptors.bench.rivals import GPM, OWM, TRGP, layers, random_basis
from conceptors.bench.row import Row, Size, aim
from conceptors.bench.steps import freeze_statistics, learned, shielded

_SHARE = 0.1  # of d: rank of ours, of GPM's basis, and of each of TRGP's
_TRUSTED = 2  # earlier tasks of TRGP


def family(size: Size, device: torch.device) -> list[Row]:
    """One row per rival: how many times our added time it adds. BatchNorm is frozen everywhere."""
    recipe = recipes.resnet18(size, device, whole=True)
    first = learned(recipe)
    shield_model = copy.deepcopy(first)
    shield = shielded(recipe, shield_model)
    optimizer = shield.guard(recipe.optimizer(shield_model))
    calls: dict[str, Callable[[], object]] = {
        "ours": Trainer.of(recipe, shield_model, optimizer, recipe.new()).step,
        "plain": _step(recipe, copy.deepcopy(first), lambda model: None),
    }
    for name, make in RIVALS.items():
        calls[name] = _step(recipe, copy.deepcopy(first), make)
    times = side_by_side(calls, device, **effort(size, device))
    plain = times["plain"].median
    ours = times["ours"].median - plain
    floor = least_seconds(shield_model, ranks(shield), measure_ceilings(device, size))
    shield.detach()
    found = []
    for name in RIVALS:
        theirs = times[name].median - plain
        found.append(
            Row(
                "family",
                f"{recipe.name} {recipe.setting}, rank {_SHARE}: time added by {name} (plain), by "
                f"us (ours)",
                plain=theirs,
                ours=ours,
                ratio=theirs / ours if ours > 0 else float("inf"),
                target=aim(2.0, size, device, "cpu cuda" if size == "full" else "cuda"),
                more=True,
                floor=floor,
                share=floor / ours if ours > 0 else None,
                notes={"steps": {n: t.median for n, t in times.items()}},
            )
        )
    return found


def _gpm(model: nn.Module) -> Callable[[], object]:
    return GPM(
        model, [random_basis(_dim(layer), _SHARE, layer.weight) for layer in layers(model)]
    ).project


def _owm(model: nn.Module) -> Callable[[], object]:
    return OWM(model).project


def _trgp(model: nn.Module) -> Callable[[], object]:
    own = layers(model)
    bases = [random_basis(_dim(layer), _SHARE, layer.weight) for layer in own]
    trusted = [
        [random_basis(_dim(layer), _SHARE, layer.weight) for _ in range(_TRUSTED)] for layer in own
    ]
    return TRGP(model, bases, trusted).project


RIVALS: dict[str, Callable[[nn.Module], Callable[[], object]]] = {
    "GPM": _gpm,
    "OWM": _owm,
    "TRGP": _trgp,
}


def _dim(layer: nn.Linear | nn.Conv2d) -> int:
    return layer.weight[0].numel()


def _step(
    recipe: Recipe, model: nn.Module, make: Callable[[nn.Module], Callable[[], object] | None]
) -> Callable[[], object]:
    """A step of a model with a method's work between backward pass and optimizer."""
    freeze_statistics(model)
    between = make(model)
    trainer = Trainer.of(recipe, model, recipe.optimizer(model), recipe.new())
    trainer.between = between
    return trainer.step
