"""A body that learns under conceptors, and a readout in closed form in its last layer's place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors._internal.precision import exactly
from conceptors.estimators.lift import Lift, RandomFeatures, Scaling
from conceptors.estimators.patches import PatchFeatures
from conceptors.estimators.readout import Readout
from conceptors.estimators.side_by_side import SideBySide
from conceptors.experiments.methods.base import only
from conceptors.experiments.methods.cab import Cab, CabSettings
from conceptors.experiments.methods.closed.features import random_features
from conceptors.experiments.methods.closed.readout import RidgeSettings
from conceptors.experiments.methods.closed.settings import LiftSettings
from conceptors.experiments.methods.relatives.layers import MatrixLayer, matrix_layers, watching
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.methods.shielded import AutoSettings, Shielded, ShieldedSettings
from conceptors.experiments.scenarios import Scenario, Split
from conceptors.layers import Call

_SEEN = (
    "what the readout sees: the inputs of the last layer, of all layers but the first, or of all; "
    "those of the first through fixed features"
)
_LEARNS = (
    "what learns after the first task: all layers but the last under conceptors, or none; "
    "auto: none where tasks have different classes and share a head"
)
_BODIES = ("shielded", "fixed", "auto")
_READS = ("last", "all", "inputs")
_PIXELS = 2000  # random functions of inputs, where none of what the body gives are asked for
_AT_ONCE = 1000  # samples of a seed whose features are held
_FIRST = 10_000  # samples of the first task at most, that a lift is fixed by


@dataclass(frozen=True)
class ReadingSettings(RidgeSettings, ShieldedSettings):
    """What is read of a body, and when that learns."""

    lift: int = setting(2000, "random features of what the body gives, 0 for that itself")
    reads: str = setting("last", _SEEN, choices=_READS)
    body: str = setting("shielded", _LEARNS, choices=_BODIES)
    grid: int = setting(4, "cells in each direction that maps are averaged over, see reads")
    filters: int = setting(1600, "patches that inputs in colour are compared with, see reads")
    mirrored: bool = setting(
        True, "images that training mirrors are read mirrored, too", before=False
    )

    def __post_init__(self) -> None:
        if not self.mirror:  # the same readout, by one name
            object.__setattr__(self, "mirrored", False)

    def check(self) -> None:
        super().check()
        for name in ("grid", "filters"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def lift_of(self, width: int) -> int:
        """Random features of that many that the body gives, 0 for none."""
        return self.lift


class ReadsOut(Shielded):
    """Each task trains the outputs of its own classes only, and what it leaves of them is not kept.

    After a task every seed's `Readout` adds the inputs of the last layer (or of all but the first,
    or of all, side by side), over all the task's training samples, to its sums: classes of
    different tasks are told apart though no task saw both. Features of earlier tasks stay as they
    were as far as the shield keeps the body.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        s, layers = self.settings, matrix_layers(self.model)
        self._read = layers[-1:] if s.reads == "last" else layers[1:]
        blank = torch.zeros(len(self.seeds), 2, *self.scenario.inputs, device=self.device)
        with torch.no_grad():
            width = self.features(blank).shape[-1]
        self.readouts = [
            Readout(
                width,
                self._lift(width, 15_485_863 + seed),
                classes=self.scenario.classes,
                regularization=s.amount,
                scores=s.scores,
                seed=15_485_863 + seed,
            ).to(self.device)
            for seed in self.seeds
        ]
        told_apart = not self.scenario.heads and self.scenario.tasks[0].classes is not None
        self._fixes_body = s.body == "fixed" or (s.body == "auto" and told_apart)
        self._learning = False
        self._is_fixed = False  # the body, in the task that is being learned

    def _lift(self, width: int, seed: int) -> int | Lift:
        """Of so many features: of inputs, which come first, and of what the body gives."""
        s = self.settings
        if s.reads != "inputs":
            count: int = s.lift_of(width)
            return count
        width -= math.prod(self.scenario.inputs)
        count = s.lift_of(width)
        given = RandomFeatures(width, count, seed=seed) if count else Scaling(width)
        return SideBySide(fixed_features(self.scenario, count, s.filters, seed), given)

    # --- the body -------------------------------------------------------------------------

    def unprotected(self) -> list[str]:
        """The last layer, whose place the readout takes."""
        return [matrix_layers(self.model)[-1].name]

    def trained_classes(self, number: int) -> Tensor | None:
        return self.scenario.tasks[number].classes

    def learn(self, number: int) -> list[dict[str, Any]]:
        self._learning, self._is_fixed = True, number > 0 and self._fixes_body
        try:
            return super().learn(number)
        finally:
            self._learning = False

    def trained(self) -> list[nn.Parameter]:
        return matrix_layers(self.model)[-1].parameters if self._is_fixed else super().trained()

    def steps(self, number: int) -> int:
        """One, where only what is thrown away would learn."""
        return 1 if self._is_fixed else super().steps(number)

    def remember(self, batches: Iterable[Any]) -> None:
        if not self._fixes_body:  # else nothing will move
            super().remember(batches)

    # --- the readouts ---------------------------------------------------------------------

    def end_task(self, number: int) -> None:
        super().end_task(number)
        split = self.scenario.tasks[number].train
        going = [i for i in range(len(self.seeds)) if i not in self.diverged]
        if number == 0:
            self._calibrate(split, going)
        for mirrored in (False, True) if self.settings.mirrored else (False,):
            for rows, labels, counted in self._looked_at(split, mirrored=mirrored):
                for i in going:
                    self.readouts[i].learn(rows[i, counted[i]], labels[i, counted[i]])
        for extra, readout in zip(self.extras, self.readouts):
            fixed = [b for b in readout.lift.buffers() if b.is_floating_point()]
            extra["lift_numbers"] = sum(b.numel() for b in fixed)

    def _calibrate(self, split: Split, going: list[int]) -> None:
        parts: list[list[Tensor]] = [[] for _ in self.seeds]
        for rows, _, counted in self._looked_at(split, _FIRST):
            for i in going:
                parts[i].append(rows[i, counted[i]])
        for i in going:
            self.readouts[i].calibrate(torch.cat(parts[i]))

    @torch.no_grad()
    def _looked_at(
        self, split: Split, limit: int | None = None, *, mirrored: bool = False
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features `[seeds, n, d]` of samples, labels `[seeds, n]`, and which of them count."""
        sizes = torch.tensor(split.sizes()).clamp_max(limit or max(split.sizes()))
        longest, training = int(sizes.max()), self.model.training
        for part in torch.arange(longest).chunk(math.ceil(longest / _AT_ONCE)):
            places = part.expand(len(sizes), -1)
            counted = (places < sizes[:, None]).to(self.device)
            x, labels = split.take(places.minimum(sizes[:, None] - 1).to(self.device))
            self.model.eval()
            rows = self.features(x.flip(-1) if mirrored else x)
            self.model.train(training)
            yield rows, labels, counted

    def features(self, x: Tensor) -> Tensor:
        """What enters the layers that are read `[seeds, n, d]`."""
        found: list[Tensor] = [x.flatten(2)] if self.settings.reads == "inputs" else []

        def seen(layer: MatrixLayer, call: Call) -> None:
            found.append(pooled(call.args[0], self.settings.grid))

        with watching(self._read, seen):
            self.model(x)
        return torch.cat(found, -1)

    def outputs(self, x: Tensor, number: int) -> Tensor:
        """The readouts' scores; of the network's own outputs while a task is being learned."""
        if self._learning:  # which no readout has seen yet
            return only(super().outputs(x, number), self.trained_classes(number))
        rows = self.features(x)
        with exactly():
            return torch.stack([self._scores(*pair) for pair in zip(self.readouts, rows)])

    def tests_in_half(self) -> bool:
        """Features are read as they were summed up."""
        return False

    def _scores(self, readout: Readout, rows: Tensor) -> Tensor:
        """Of all classes `[n, classes]`, -∞ for those that were never seen."""
        if not readout.n_samples:
            return rows.new_full((len(rows), self.scenario.classes), -torch.inf)
        scores: Tensor = readout(rows)
        scores = scores.masked_fill(readout.counts == 0, -torch.inf)
        return functional.pad(
            scores, (0, self.scenario.classes - scores.shape[1]), value=-torch.inf
        )

    def masked(self, outputs: Tensor, number: int) -> Tensor:
        """With one head per task, only its own classes count, however low their scores are."""
        classes = self.scenario.tasks[number].classes if self.scenario.heads else None
        return only(outputs, classes, -torch.inf)

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Classes that were never seen count as unlikely, not as impossible: no NaN."""
        return super().loss(outputs if self._learning else outputs.clamp_min(-1e4), y, number)

    def stored_numbers(self) -> list[int]:
        """The shield's conceptors and the readouts' sums."""
        sums = [
            sum(v.numel() for name, v in readout.state_dict().items() if name.startswith("sums."))
            for readout in self.readouts
        ]
        return [conceptors + own for conceptors, own in zip(super().stored_numbers(), sums)]


@dataclass(frozen=True)
class CabReadoutSettings(ReadingSettings, CabSettings):
    """Apertures are chosen."""


class CabReadout(ReadsOut, Cab):
    name: ClassVar[str] = "cab-readout"
    about: ClassVar[str] = "cab for all layers but the last, and a Readout in its place"
    settings_type: ClassVar[type[Settings]] = CabReadoutSettings


@dataclass(frozen=True)
class ShieldReadoutSettings(ReadingSettings, AutoSettings):
    """Nothing is chosen.

    Where one head tells the classes of all tasks apart, their sums need features that stay: the
    body is fixed, and images are read beside it. Elsewhere it learns under `Shield(model)`.
    """

    body: str = setting("auto", _LEARNS, choices=_BODIES)
    lift: int = setting(2000, "random features of what is read, where that is less; 0 for none")
    reads: str = setting("inputs", _SEEN, choices=_READS)

    def lift_of(self, width: int) -> int:
        return self.lift if width < self.lift else 0


class ShieldReadout(ReadsOut):
    name: ClassVar[str] = "shield-readout"
    about: ClassVar[str] = (
        "a Readout of images and layers in the last one's place, with nothing chosen"
    )
    settings_type: ClassVar[type[Settings]] = ShieldReadoutSettings


def fixed_features(scenario: Scenario, count: int, filters: int, seed: int) -> Lift:
    """Of a scenario's inputs: patches of images in colour, smooth functions of others."""
    if scenario.image is not None and scenario.image[0] > 1:
        return PatchFeatures(scenario.image, filters, grid=2, seed=seed)
    own = LiftSettings(lift=count or _PIXELS)
    return random_features(math.prod(scenario.inputs), scenario, own, seed)


def pooled(x: Tensor, grid: int) -> Tensor:
    """Maps `[seeds, n, c, h, w]` as means over cells `[seeds, n, d]`; what is no map stays."""
    if x.ndim == 3:
        return x
    high, wide = (min(grid, size) for size in x.shape[-2:])
    cells = functional.adaptive_avg_pool2d(x.flatten(0, 1), (high, wide))
    found: Tensor = cells.flatten(1).unflatten(0, x.shape[:2])
    return found
