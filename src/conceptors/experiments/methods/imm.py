"""Incremental moment matching (Lee et al. 2017)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.ewc import fisher, weights_of
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class ImmSettings(Settings):
    mode: str = setting("mode", "tasks' weights count equally, or by Fisher", ("mean", "mode"))
    share: float = setting(0.5, "weight of the last task; others share the remainder", below=1)
    l2: float = setting(0.0, "L2-transfer: pull towards the last task's weights")


class Imm(Learner):
    """Each task yields a Gaussian over weights; tests use the mean or the mode of their mixture.

    Training starts from the last task's weights (weight-transfer).
    """

    name = "imm"
    about = "incremental moment matching (Lee et al. 2017)"
    settings_type = ImmSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.merged = self.previous = weights_of(self.model).detach()
        self.precision = torch.ones_like(self.merged)

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        squares = (weights_of(self.model) - self.previous).square()
        penalty: Tensor = (self.settings.l2 if number else 0) * squares.sum()
        return super().loss(outputs, y, number) + penalty

    def end_task(self, number: int) -> None:
        s, weights = self.settings, weights_of(self.model).detach()
        is_mode, share = s.mode == "mode", s.share if number else 1.0
        new = fisher(self, number, "true") + 1e-8 if is_mode else torch.ones_like(weights)
        old, new = (1 - share) * self.precision, share * new
        self.previous, self.precision = weights, old + new
        self.merged = (old * self.merged + new * weights) / self.precision

    def test(self, *args: Any) -> list[float]:
        """Test the merged weights; training continues from its own."""
        trained, parameters = weights_of(self.model).detach(), list(self.model.parameters())
        nn.utils.vector_to_parameters(self.merged, parameters)
        accuracies = super().test(*args)
        nn.utils.vector_to_parameters(trained, parameters)
        return accuracies
