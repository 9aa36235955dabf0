"""`Readout`: ridge regression on all samples so far, on random features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn import functional

from conceptors.estimators.readout import Readout
from conceptors.experiments.methods.closed.base import ClosedForm, Head
from conceptors.experiments.methods.closed.features import random_features
from conceptors.experiments.methods.closed.settings import LiftSettings
from conceptors.experiments.methods.settings import OwnSettings, setting


@dataclass(frozen=True)
class RidgeSettings(OwnSettings):
    """What a readout may be told, whatever it reads."""

    regularization: str = setting(
        "auto", "of the ridge regression: a number, or auto for generalised cross-validation"
    )

    scores: str = setting(
        "regression",
        "of classes: regressed, or log-likelihoods by discriminant analysis",
        ("regression", "likelihood"),
    )

    @property
    def amount(self) -> Any:
        """A number, or "auto"."""
        return "auto" if self.regularization == "auto" else float(self.regularization)

    def check(self) -> None:
        super().check()
        try:
            wrong = self.amount != "auto" and not 0 < self.amount < float("inf")
        except ValueError:
            wrong = True
        if wrong:
            raise ValueError(
                f"regularization must be auto or a number above 0, got {self.regularization!r}"
            )


@dataclass(frozen=True)
class ReadoutSettings(RidgeSettings, LiftSettings):
    """Of a readout of inputs."""


class ReadoutHead(Head):
    """Sums over samples, from which the solution is made when it is asked for."""

    def __init__(self, scenario: Any, settings: Any, seed: int) -> None:
        super().__init__(scenario, settings, seed)
        lift = random_features(self.width, scenario, settings, seed) if settings.lift else 0
        self.readout = Readout(
            self.width, lift, regularization=settings.amount, scores=settings.scores
        )

    def calibrate(self, rows: Tensor) -> None:
        self.readout.calibrate(rows)

    def add(self, rows: Tensor, labels: Tensor) -> None:
        self.readout.learn(rows, labels)

    def scores(self, rows: Tensor) -> Tensor:
        found: Tensor = self.readout(rows)
        return functional.pad(found, (0, self.classes - found.shape[1]))

    def kept(self) -> list[Tensor]:
        state = self.readout.state_dict()
        return [value for name, value in state.items() if name.startswith("sums.")]


class ReadoutMethod(ClosedForm):
    name: ClassVar[str] = "readout"
    about: ClassVar[str] = "ridge regression on all samples so far from sums (Readout)"
    settings_type: ClassVar[type[OwnSettings]] = ReadoutSettings
    head: ClassVar[type[Head]] = ReadoutHead
