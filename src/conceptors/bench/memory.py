"""memory-gpt2: extra peak memory of shielded training, in percent of plain training."""

from __future__ import annotations

from collections.abc import Callable

import torch

from conceptors.bench import recipes
from conceptors.bench.measure import peak_memory, release
from conceptors.bench.recipes import Trainer
from conceptors.bench.row import Row, Size, aim
from conceptors.bench.steps import shielded

_STEPS = 3


def memory_gpt2(size: Size, device: torch.device) -> list[Row]:
    """Each alone: build, (remember,) three steps, then the peak of three more."""
    recipe = recipes.gpt2(size, device)
    batches = recipe.new()

    def build(protected: bool) -> Callable[[], object]:
        model = recipe.build()
        optimizer = recipe.optimizer(model)
        kept = shielded(recipe, model) if protected else None
        if kept is not None:
            kept.guard(optimizer)
        trainer = Trainer.of(recipe, model, optimizer, batches)

        def run() -> object:
            for _ in range(_STEPS):
                trainer.step()
            return kept  # the shield lives as long as the steps do

        return run

    plain = peak_memory(lambda: build(False), device)
    reserved = [_reserved(device)]
    release(device)
    ours = peak_memory(lambda: build(True), device)
    reserved.append(_reserved(device))
    return [
        Row(
            "memory-gpt2",
            f"{recipe.name} {recipe.setting}, rank {recipe.rank}: peak memory of training",
            unit="B",
            plain=plain,
            ours=ours,
            ratio=ours / plain,
            target=aim(1.12, size, device),
            notes={"reserved_plain_and_ours": reserved},
        )
    ]


def _reserved(device: torch.device) -> int | None:
    """What torch has taken from the GPU, recorded graphs and unused blocks included."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
