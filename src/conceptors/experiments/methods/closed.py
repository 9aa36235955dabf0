"""What methods in closed form share: features, one pass over each task, sums over samples."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from conceptors import PatchFeatures
from conceptors._internal.precision import exactly
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import OwnSettings, setting

SEED = 15_485_863  # of the features of seed 0
CALIBRATION = 10_000  # samples of the first task that features are calibrated on at most
_AT_ONCE = 4096  # samples whose features are computed together


@dataclass(frozen=True)
class ClosedSettings(OwnSettings):
    features: str = setting("none", "inputs as they are, or patches of images", ("none", "patches"))
    filters: int = setting(400, "number of patch features")
    patch: int = setting(6, "size of a patch in pixels")
    grid: int = setting(3, "cells in each direction that responses to patches are averaged over")


@dataclass(frozen=True)
class LiftSettings(ClosedSettings):
    lift: int = setting(2000, "number of random features")


class ClosedForm(Learner):
    """One pass over each task, without gradients; only sums over samples are stored.

    `model` computes features. A subclass defines how to `add` samples, and the `outputs`: scores
    of classes, -∞ for classes that were never seen.
    """

    settings_type = ClosedSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.width: int = getattr(self.model, "out_features", math.prod(self.scenario.inputs))
        self.classes = self.scenario.classes

    def network(self) -> nn.Module:
        s, scenario = self.settings, self.scenario
        self.seed = SEED + scenario.seed
        if s.features == "none":
            return nn.Flatten()
        if scenario.image is None:
            raise ValueError(f"features=patches needs images, unlike {scenario.name}. Leave it out")
        return PatchFeatures(scenario.image, s.filters, size=s.patch, grid=s.grid, seed=self.seed)

    def calibrate(self, rows: Tensor) -> None:
        """Calibrate random features on features `[n, width]` of the first task."""

    def add(self, rows: Tensor, labels: Tensor) -> None:
        """Learn a part of a task: features `[n, width]` with labels `[n]`."""
        raise NotImplementedError

    @exactly()
    def learn(self, number: int) -> None:
        split = self.scenario.tasks[number].train
        order = split.drawn(0, 224_737 * (number + 1) + self.scenario.seed)
        if number == 0:
            x, _ = split.take(order[:CALIBRATION])
            if isinstance(self.model, PatchFeatures):
                self.model.calibrate(x.flatten(1))
            self.calibrate(self.model(x))
        for places in order.split(_AT_ONCE):
            x, y = split.take(places)
            self.add(self.model(x), y)
        self.end_task(number)

    def passes(self) -> AbstractContextManager[None]:
        return exactly()
