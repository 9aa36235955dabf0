"""`Readout`: ridge regression on all samples so far, on random features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conceptors import RandomFeatures, Readout
from conceptors.experiments.methods.closed.base import ClosedForm, ClosedSettings
from conceptors.experiments.methods.settings import OwnSettings, setting
from conceptors.experiments.scenarios import Scenario
from conceptors.readout import Lift, Scaling


@dataclass(frozen=True)
class RidgeSettings(OwnSettings):
    regularization: str = setting("auto", "of the ridge regression; auto: cross-validated")
    scores: str = setting(
        "regression",
        "of classes: regressed, or log-likelihoods by discriminant analysis",
        ("regression", "likelihood"),
    )


@dataclass(frozen=True)
class ReadoutSettings(RidgeSettings, ClosedSettings):
    lift: int = setting(2000, "random features, 0 for none")
    activation: str = setting("fourier", "of the random features", ("relu", "tanh", "fourier"))
    shape: float = setting(0.25, "power of the data's covariance that weights are drawn with")


class ReadoutMethod(ClosedForm):
    name = "readout"
    about = "ridge regression on all samples so far from sums (Readout)"
    settings_type = ReadoutSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        s = self.settings
        lift: Lift = Scaling(self.width)
        if s.lift and s.features == "none":
            lift = input_lift(self.scenario, s.lift, s.activation, s.shape, self.seed)
        elif s.lift:
            lift = RandomFeatures(self.width, s.lift, s.activation, shape=s.shape, seed=self.seed)
        self.readout = AllClasses(lift, self.classes, s).to(self.device)

    def calibrate(self, rows: Tensor) -> None:
        self.readout.calibrate(rows)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.readout.learn(rows, labels)

    def scores(self, rows: Tensor) -> Tensor:
        return self.readout.scores_of(rows)

    def stored_numbers(self) -> int:
        return self.readout.stored_numbers()


class AllClasses(Readout):
    """A readout that has scores for classes it has not seen yet, too."""

    def __init__(self, lift: Lift, classes: int, settings: Any) -> None:
        given = settings.regularization
        amount = given if given == "auto" else float(given)
        super().__init__(
            lift.in_features, lift, classes=classes, regularization=amount, scores=settings.scores
        )
        self.classes, self.width = classes, lift.out_features

    def scores_of(self, rows: Tensor) -> Tensor:
        """Scores `[n, classes]`, -∞ for classes that were never seen."""
        scores = rows.new_full((len(rows), self.classes), -math.inf)
        if self.n_samples:
            seen = self.counts.nonzero().flatten()
            scores[:, seen] = self(rows)[:, seen]
        return scores

    def stored_numbers(self) -> int:
        """Numbers in the sums of products, of each class, and of samples."""
        width = self.width + 1
        return width**2 + self.classes * (width + 1)


def input_lift(scenario: Scenario, count: int, activation: Any, shape: float, seed: int) -> Lift:
    """Random features of a scenario's inputs: smooth ones of images."""
    image = {"image": scenario.image, "unit": True, "spread": 1.0}
    options: dict[str, Any] = image if scenario.image is not None else {}
    width = math.prod(scenario.inputs)
    return RandomFeatures(width, count, activation, shape=shape, seed=seed, **options)
