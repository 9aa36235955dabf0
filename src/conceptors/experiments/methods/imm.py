"""Incremental moment matching (Lee et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.fisher import FisherSettings, fisher
from conceptors.experiments.methods.settings import setting


@dataclass(frozen=True)
class ImmSettings(FisherSettings):
    mode: str = setting("mode", "tasks' weights count equally, or by Fisher", ("mean", "mode"))
    share: float = setting(0.5, "weight of the last task; earlier tasks share the remainder")
    l2: float = setting(0.0, "L2-transfer: pull towards the last task's weights")
    labels: str = setting("true", "labels of the Fisher: expected ones, or true", ("all", "true"))

    def check(self) -> None:
        super().check()
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in ]0, 1], got {self.share}")


class Imm(Learner):
    """Every task leaves a Gaussian over weights; tested is the mean or the mode of their mixture.

    Training starts from the last task's weights (weight-transfer).
    """

    name = "imm"
    about = "incremental moment matching (Lee et al. 2017)"
    settings_type = ImmSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.merged = self.previous = self._weights()
        self.precision = torch.ones_like(self.merged)

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        losses = super().loss(outputs, y, number)
        if not number or not self.settings.l2:
            return losses
        moved = nn.utils.parameters_to_vector(self.model.parameters()) - self.previous
        penalty: Tensor = self.settings.l2 * moved.square().sum()
        return losses + penalty

    def end_task(self, number: int) -> None:
        s, weights = self.settings, self._weights()
        new = fisher(self, number) + 1e-8 if s.mode == "mode" else torch.ones_like(weights)
        share = s.share if number else 1.0
        precision = (1 - share) * self.precision + share * new
        self.merged = (
            (1 - share) * self.precision * self.merged + share * new * weights
        ) / precision
        self.previous, self.precision = weights, precision

    def stored_numbers(self) -> int:
        """Merged weights, and their precision unless it is 1 everywhere."""
        return len(self.merged) * (2 if self.settings.mode == "mode" else 1)

    @contextmanager
    def weights_for_test(self) -> Iterator[None]:
        trained, parameters = self._weights(), list(self.model.parameters())
        nn.utils.vector_to_parameters(self.merged, parameters)
        try:
            yield
        finally:
            nn.utils.vector_to_parameters(trained, parameters)

    def _weights(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()
