"""Features that methods in closed form share: of patches, and random ones."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.estimators.lift import RandomFeatures
from conceptors.estimators.patches import PatchFeatures
from conceptors.experiments.scenarios import Scenario


def looks(scenario: Scenario, settings: Any, seed: int) -> tuple[nn.Module, int]:
    """What every method sees of inputs, and how many numbers that is.

    Raises:
        ValueError: patches of inputs that are no images.
    """
    if settings.features == "none":
        return nn.Flatten(), math.prod(scenario.inputs)
    if scenario.image is None:
        raise ValueError(
            f"features=patches needs images, which inputs of {scenario.name} are not; use "
            f"features=none"
        )
    made = PatchFeatures(
        scenario.image, settings.filters, size=settings.patch, grid=settings.grid, seed=seed
    )
    return made, made.out_features


def random_features(width: int, scenario: Scenario, settings: Any, seed: int) -> RandomFeatures:
    """Random features of what is seen: smooth ones where that is an image."""
    s = settings
    image = scenario.image if s.smooth and s.features == "none" else None
    usual = None if image is None else 1.0
    return RandomFeatures(
        width,
        s.lift,
        s.activation,
        shape=s.shape,
        spread=s.spread or usual,
        unit=s.unit or image is not None,
        image=image,
        smooth=s.smooth,
        seed=seed,
    )


class Projection(nn.Module):
    """relu(x W) with normal random W, drawn without any data: as RanPAC and ACIL have it."""

    weight: Tensor

    def __init__(self, width: int, lift: int, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.register_buffer("weight", torch.randn(width, lift, generator=draw) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).relu()
