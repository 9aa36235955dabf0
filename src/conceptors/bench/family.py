"""family: time added to a step of ResNet-18, ours against related methods."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from conceptors.bench import recipes
from conceptors.bench.ceilings import measure_ceilings
from conceptors.bench.floor import least_seconds, ranks
from conceptors.bench.measure import effort, side_by_side
from conceptors.bench.recipes import Trainer
from conceptors.bench.rivals import GPM, OWM, TRGP, layers, random_basis
from conceptors.bench.row import Row, Size, aim
from conceptors.bench.steps import freeze_statistics

_SHARE = 0.1  # of d: rank of ours, of GPM's basis, and of each of TRGP's
_TRUSTED = 2  # earlier tasks of TRGP


def family(size: Size, device: torch.device) -> list[Row]:
    """One row per rival: how many times our added time it adds. BatchNorm is frozen everywhere."""
    recipe = recipes.resnet18(size, device, whole=True)
    first = recipe.learned()
    model = copy.deepcopy(first)
    shield = recipe.shielded(model)
    calls: dict[str, Callable[[], object]] = {
        "ours": Trainer(recipe, model, recipe.new(), shield).step
    }
    for name, make in {"plain": lambda model: lambda: None, **RIVALS}.items():
        model = copy.deepcopy(first)
        freeze_statistics(model)
        between = make(model)  # may add parameters: the optimizer comes later
        calls[name] = Trainer(recipe, model, recipe.new(), between=between).step
    times = side_by_side(calls, device, **effort(size, device))
    plain = times["plain"].median
    ours = times["ours"].median - plain
    floor = least_seconds(shield.model, ranks(shield), measure_ceilings(device, size))
    shield.detach()
    found = []
    for name in RIVALS:
        theirs = times[name].median - plain
        found.append(
            Row(
                "family",
                f"{recipe}, rank {_SHARE}: time added by {name} (plain), by us (ours)",
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


def _bases(model: nn.Module) -> list[Tensor]:
    """One for each layer, of the same share of its inputs."""
    return [random_basis(layer.weight[0].numel(), _SHARE, layer.weight) for layer in layers(model)]


def _trgp(model: nn.Module) -> Callable[[], object]:
    own = _bases(model)
    trusted = [list(bases) for bases in zip(*(_bases(model) for _ in range(_TRUSTED)))]
    return TRGP(model, own, trusted).project


RIVALS: dict[str, Callable[[nn.Module], Callable[[], object]]] = {
    "GPM": lambda model: GPM(model, _bases(model)).project,
    "OWM": lambda model: OWM(model).project,
    "TRGP": _trgp,
}
