"""A network under conceptors whose last layer is replaced by a readout in closed form."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors import LayerInputs, PatchFeatures, RandomFeatures, Readout
from conceptors._internal.precision import exactly
from conceptors.experiments.methods import cab
from conceptors.experiments.methods.base import only
from conceptors.experiments.methods.closed import CALIBRATION, SEED
from conceptors.experiments.methods.readout import class_scores
from conceptors.experiments.methods.settings import setting
from conceptors.readout import Lift, Scaling, SideBySide

_PIXELS = 2000  # random features of inputs, where `lift` is 0
_AT_ONCE = 1000  # samples whose features are computed together


@dataclass(frozen=True)
class ShieldReadoutSettings(cab.ShieldedSettings):
    lift: int = setting(2000, "random features of images, and of layers with fewer numbers")
    filters: int = setting(1600, "patches that colour images are compared with instead")


class ShieldReadout(cab.Shielded):
    """Each task trains the outputs of its own classes only; tests use a `Readout`.

    The readout reads the input and the inputs of all layers but the first, side by side, for all
    training samples. So it tells apart classes that no task trains together. Images that training
    mirrors are read both ways. The shield protects all layers but the last, which are the body. The
    body is fixed after the first task where tasks have different classes and share a head.
    """

    name = "shield-readout"
    about = "Shield(model) for all layers but the last, and a Readout of images and layers"
    settings_type: ClassVar[type[cab.ShieldedSettings]] = ShieldReadoutSettings
    replaces_head = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        s, scenario, seed = self.settings, self.scenario, SEED + self.scenario.seed
        example = torch.zeros(2, *scenario.inputs, device=self.device)
        self.body = LayerInputs(self.model, example, layers=self.layers[1:])
        pixels, image = example[0].numel(), scenario.image
        width = self.body.out_features - pixels
        layers = RandomFeatures(width, s.lift, seed=seed) if width < s.lift else Scaling(width)
        inputs: Lift
        if image is not None and image[0] > 1:
            inputs = PatchFeatures(image, s.filters, grid=2, seed=seed)
        else:
            count = s.lift or _PIXELS
            inputs = RandomFeatures(pixels, count, "fourier", shape=0.25, image=image, seed=seed)
        lift = SideBySide(inputs, layers)
        self.readout = Readout(lift.in_features, lift).to(self.device)
        self.fixes_body = not scenario.heads and scenario.tasks[0].classes is not None
        self.is_training = False

    def trained_classes(self, number: int) -> Tensor | None:
        return self.scenario.tasks[number].classes

    def learn(self, number: int) -> None:
        if number and self.fixes_body:  # only the readout learns
            with self.passes():
                self.end_task(number)
            return
        self.is_training = True
        super().learn(number)
        self.is_training = False

    def end_task(self, number: int) -> None:
        if not self.fixes_body:  # otherwise there is nothing to protect
            super().end_task(number)
        if number == 0:
            first = [rows for rows, _ in self._features(number, CALIBRATION)]
            self.readout.calibrate(torch.cat(first))
        for is_mirrored in (False, True) if self.settings.mirror else (False,):
            for rows, labels in self._features(number, is_mirrored=is_mirrored):
                self.readout.learn(rows, labels)

    def _features(
        self, number: int, limit: int | None = None, is_mirrored: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Features `[n, d]` of a task's training samples, and their labels."""
        split = self.scenario.tasks[number].train
        places = torch.arange(len(split), device=self.device)[:limit]
        for part in places.tensor_split(-(-len(places) // _AT_ONCE)):
            x, labels = split.take(part)
            yield self.body(x.flip(-1) if is_mirrored else x), labels

    def outputs(self, x: Tensor, number: int) -> Tensor:
        """The readout's scores; in training, the network's for the task's classes."""
        if self.is_training:
            return only(super().outputs(x, number), self.trained_classes(number))
        rows = self.body(x)
        with exactly():
            return class_scores(self.readout, rows, self.scenario.classes)


@dataclass(frozen=True)
class CabReadoutSettings(ShieldReadoutSettings, cab.CabSettings):
    pass


class CabReadout(ShieldReadout, cab.Cab):
    """The body learns in every task."""

    name = "cab-readout"
    about = "cab for all layers but the last, and a Readout of images and layers"
    settings_type = CabReadoutSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fixes_body = False
