"""step-*, layer-8b, memory-gpt2: shielded training against plain training of the same network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from conceptors.bench import recipes
from conceptors.bench.ceilings import measure_ceilings
from conceptors.bench.floor import least_seconds, ranks
from conceptors.bench.measure import compared, effort, peak_memory, release, side_by_side
from conceptors.bench.protection import Protection, drift, leak, outputs
from conceptors.bench.recipes import Recipe, Trainer, real_gpu
from conceptors.bench.row import Row, Size, aim


def mlps(size: Size, device: torch.device) -> list[Recipe]:
    """Batches of 64 and 300, each hard, as the paper has it for disjoint MNIST, and soft."""
    return [
        recipes.mlp(size, device, count, target, hard)
        for count, target in ((64, 1.5), (300, 1.35))
        for hard in (True, False)
    ]


def vits(size: Size, device: torch.device) -> list[Recipe]:
    """A tenth of the directions, and all of them."""
    vit = recipes.vit(size, device)
    return [vit, replace(vit, rank=None, target=None)]


def layers_8b(size: Size, device: torch.device) -> list[Recipe]:
    """Weights in float32, and on a GPU also in bfloat16."""
    halves = (False, True) if real_gpu(size, device) else (False,)
    return [recipes.layer_8b(size, device, half) for half in halves]


def step_rows(what: str, variants: Sequence[Recipe]) -> list[Row]:
    """Shielded against plain steps, with floor and protection; a row, or two with BatchNorm."""
    found = []
    for recipe in variants:
        found += _step_rows(what, recipe)
        release(recipe.device)
    return found


def _step_rows(what: str, recipe: Recipe) -> list[Row]:
    device, first = recipe.device, recipe.learned()
    kept = protection(recipe, copy.deepcopy(first))
    baselines = {"plain": ""}
    models = {"plain": first, "shielded": copy.deepcopy(first), "frozen": copy.deepcopy(first)}
    if freeze_statistics(models["frozen"]):
        baselines["frozen"] = " (plain with BatchNorm statistics frozen too)"
    else:
        del models["frozen"]
    shields = {"shielded": recipe.shielded(models["shielded"])}
    batches = recipe.new()
    calls = {n: Trainer(recipe, m, batches, shields.get(n)).step for n, m in models.items()}
    times = side_by_side(calls, device, **effort(recipe.size, device))
    ours, shield = times["shielded"], shields["shielded"]
    ceilings = measure_ceilings(device, recipe.size)
    floor = partial(least_seconds, shield.model, ranks(shield), ceilings, rows=recipe.rows)
    notes = {
        "shielded_quartiles": ours.quartiles,
        "steps": ours.calls,
        "floor_seconds_float32": floor(rate=ceilings.float32),
        "mean_quota": sum(shield.quota().values()) / len(shield.quota()),
    }
    shield.detach()
    hard = ", hard" if recipe.hard else ""
    return [
        compared(
            Row(
                what,
                f"{recipe}, rank {recipe.rank}{hard}{note}",
                target=recipe.target,
                floor=floor(),
                drift=kept.drift,
                drift_plain=kept.drift_plain,
                leak=kept.leak,
                notes=notes
                | {
                    "plain_quartiles": times[name].quartiles,
                    "added_seconds": ours.median - times[name].median,
                },
            ),
            ours,
            times[name],
        )
        for name, note in baselines.items()
    ]


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
    for model in (plain, first):
        freeze_statistics(model)
    shields = [recipe.shielded(soft), recipe.shielded(hard, hard=True)]
    for model, shield in zip((plain, soft, hard), (None, *shields)):
        Trainer(recipe, model, recipe.new(), shield).run(recipe.steps)
    before = outputs(first, x)
    found = Protection(
        drift(before, outputs(soft, x)),
        drift(before, outputs(plain, x)),
        leak(shields[1], first, plain),
    )
    for shield in shields:
        shield.detach()
    return found


def memory_gpt2(size: Size, device: torch.device) -> list[Row]:
    """Each alone: build, (remember,) three steps, then the peak of three more."""
    recipe = recipes.gpt2(size, device)
    batches = recipe.new()

    def build(protected: bool) -> Callable[[], object]:
        model = recipe.build()
        shield = recipe.shielded(model) if protected else None
        return partial(Trainer(recipe, model, batches, shield).run, 3)

    peaks, reserved = [], []
    for protected in (False, True):
        peaks.append(peak_memory(partial(build, protected), device))
        # what torch has taken from the GPU, recorded graphs and unused blocks included
        reserved.append(torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None)
        release(device)
    return [
        Row(
            "memory-gpt2",
            f"{recipe}, rank {recipe.rank}: peak memory of training",
            unit="B",
            plain=peaks[0],
            ours=peaks[1],
            ratio=peaks[1] / peaks[0],
            target=aim(1.12, size, device),
            notes={"reserved_plain_and_ours": reserved},
        )
    ]
