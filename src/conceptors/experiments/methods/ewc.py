"""Elastic weight consolidation (Kirkpatrick et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.fisher import FisherSettings, fisher
from conceptors.experiments.methods.settings import setting


@dataclass(frozen=True)
class EwcSettings(FisherSettings):
    strength: float = setting(15.0, "weight of the Fisher penalty")


class Ewc(Learner):
    """(strength / 2) Σ_k F_k (θ - θ_k)² is added to the loss, F_k the Fisher diagonal of task k.

    Up to a constant that is one quadratic form, with the sum F of all F_k, around the mean of all
    θ_k weighted by F_k.
    """

    name = "ewc"
    about = "elastic weight consolidation (Kirkpatrick et al. 2017)"
    settings_type = EwcSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.anchor = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        self.fisher = torch.zeros_like(self.anchor)

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        moved = nn.utils.parameters_to_vector(self.model.parameters()) - self.anchor
        penalty: Tensor = self.settings.strength / 2 * (self.fisher * moved.square()).sum()
        return super().loss(outputs, y, number) + penalty

    def end_task(self, number: int) -> None:
        new = fisher(self, number)
        self.fisher = self.fisher + new
        share = new / self.fisher.clamp_min(torch.finfo(new.dtype).tiny)
        weights = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        self.anchor = torch.lerp(self.anchor, weights, share)

    def stored_numbers(self) -> int:
        return len(self.fisher) + len(self.anchor)
