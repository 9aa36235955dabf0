"""step-resnet18, -gpt2, -vit, -minilm, -cnn: shielded against plain steps of known networks."""

from __future__ import annotations

import torch

from conceptors.bench import recipes
from conceptors.bench.measure import release
from conceptors.bench.row import Row, Size, aim
from conceptors.bench.steps import step_rows


def step_resnet18(size: Size, device: torch.device) -> list[Row]:
    """Momentum SGD, a tenth of the directions."""
    return step_rows("step-resnet18", recipes.resnet18(size, device), size, aim(1.06, size, device))


def step_gpt2(size: Size, device: torch.device) -> list[Row]:
    """AdamW, a tenth of the directions."""
    return step_rows("step-gpt2", recipes.gpt2(size, device), size, aim(1.12, size, device))


def step_vit(size: Size, device: torch.device) -> list[Row]:
    """AdamW, a tenth of the directions, and all of them."""
    recipe = recipes.vit(size, device)
    found = step_rows("step-vit", recipe, size, aim(1.08, size, device))
    release(device)
    return found + step_rows("step-vit", recipes.dense(recipe), size, None)


def step_minilm(size: Size, device: torch.device) -> list[Row]:
    """A sentence encoder with AdamW, `Shield(model)` as it comes."""
    return step_rows("step-minilm", recipes.minilm(size, device), size, aim(1.15, size, device))


def step_cnn(size: Size, device: torch.device) -> list[Row]:
    """A small convolutional network with AdamW, `Shield(model)` as it comes."""
    return step_rows("step-cnn", recipes.cnn(size, device), size, aim(1.35, size, device, "cpu"))
