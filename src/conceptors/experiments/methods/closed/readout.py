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


@dataclass(frozen=True)
class RidgeSettings(OwnSettings):
    regularization: str = setting(
        "auto", "of the ridge regression: a number, or auto for generalised cross-validation"
    )
    scores: str = setting(
        "regression",
        "of classes: regressed, or log-likelihoods by discriminant analysis",
        ("regression", "likelihood"),
    )

    def readout(self, width: int, lift: Any, classes: int, seed: int) -> Readout:
        try:
            amount: Any = float(self.regularization)
        except ValueError:
            amount = self.regularization
        return Readout(
            width, lift, classes=classes, regularization=amount, scores=self.scores, seed=seed
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
        s, lift = self.settings, None
        if s.lift and s.features == "none":
            lift = input_features(self.scenario, s.lift, s.activation, s.shape, self.seed)
        elif s.lift:
            lift = RandomFeatures(self.width, s.lift, s.activation, shape=s.shape, seed=self.seed)
        self.readout = s.readout(self.width, lift or 0, self.classes, self.seed).to(self.device)

    def calibrate(self, rows: Tensor) -> None:
        self.readout.calibrate(rows)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.readout.learn(rows, labels)

    def scores(self, rows: Tensor) -> Tensor:
        return readout_scores(self.readout, rows, self.classes)

    def stored_numbers(self) -> int:
        return sums_of(self.readout, self.classes)


def input_features(
    scenario: Scenario, count: int, activation: Any, shape: float, seed: int
) -> RandomFeatures:
    """Random features of a scenario's inputs: smooth ones of images."""
    smooth: dict[str, Any] = {"image": scenario.image, "unit": True, "spread": 1.0}
    options = smooth if scenario.image is not None else {}
    width = math.prod(scenario.inputs)
    return RandomFeatures(width, count, activation, shape=shape, seed=seed, **options)


def readout_scores(readout: Readout, rows: Tensor, classes: int) -> Tensor:
    """Scores `[n, classes]`, -∞ for classes that were never seen."""
    scores = rows.new_full((len(rows), classes), -float("inf"))
    if readout.n_samples:
        seen = readout.counts.nonzero().flatten()
        scores[:, seen] = readout(rows)[:, seen]
    return scores


def sums_of(readout: Readout, classes: int) -> int:
    """Numbers in a readout's sums: of products, of each class, and of samples."""
    width = int(readout.lift.out_features) + 1
    return width**2 + classes * (width + 1)
