"""`Readout`: ridge regression on all samples so far, on random features."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conceptors import RandomFeatures, Readout
from conceptors.experiments.methods.closed import ClosedForm, LiftSettings
from conceptors.experiments.methods.settings import setting
from conceptors.readout import Lift, Scaling


@dataclass(frozen=True)
class ReadoutSettings(LiftSettings):
    activation: str = setting("fourier", "of the random features", ("relu", "tanh", "fourier"))
    shape: float = setting(0.25, "power of the data's covariance that random features follow")
    scores: str = setting(
        "regression",
        "scores of classes: regressed, or log-likelihoods by discriminant analysis",
        ("regression", "likelihood"),
    )


class ReadoutMethod(ClosedForm):
    name = "readout"
    about = "ridge regression on all samples so far from sums (Readout)"
    settings_type = ReadoutSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        s = self.settings
        image = self.scenario.image if s.features == "none" else None
        options: dict[str, Any] = {"shape": s.shape, "image": image, "seed": self.seed}
        lift: Lift = Scaling(self.width)
        if s.lift:
            lift = RandomFeatures(self.width, s.lift, s.activation, **options)
        self.readout = Readout(self.width, lift, scores=s.scores).to(self.device)

    def calibrate(self, rows: Tensor) -> None:
        self.readout.calibrate(rows)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.readout.learn(rows, labels)

    def outputs(self, x: Tensor, number: int) -> Tensor:
        return class_scores(self.readout, self.model(x), self.classes)


def class_scores(readout: Readout, rows: Tensor, classes: int) -> Tensor:
    """Scores `[n, classes]` of features `[n, d]`, -∞ for classes that were never seen."""
    scores = rows.new_full((len(rows), classes), -math.inf)
    if readout.n_samples:
        seen = readout.counts.nonzero().flatten()
        scores[:, seen] = readout(rows)[:, seen]
    return scores
