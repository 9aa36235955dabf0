"""Orthogonal weights modification (Zeng, Chen, Cui & Yu 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.experiments.methods.relatives.layers import MatrixLayer, ProjectedLearner
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class OwmSettings(Settings):
    alpha: float = setting(1.0, "α at the start of a task; smaller protects more")
    alpha_decay: str = setting("0.1", "factor on α at its end, of all layers or each: 0.9,1,0.6")
    clip: float = setting(10.0, "longest projected gradient of all parameters, 0 for any length")


class Owm(ProjectedLearner):
    """Each layer's gradient is multiplied by P, which recursive least squares updates.

    P starts at I. At every step, of the first task too, with x the mean input row of the batch:

        k = P x / (α + xᵀ P x),    P ← P - k (P x)ᵀ,    g ← g P.

    With one α that is P = α (α I + Σ x xᵀ)⁻¹. α falls exponentially within each task. In
    convolutions x is the mean over patches too, which the paper's code goes through one by one.
    """

    name = "owm"
    about = "orthogonal weights modification (Zeng et al. 2019)"
    settings_type = OwmSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        given = [float(part) for part in self.settings.alpha_decay.split(",")]
        decays = given * len(self.layers) if len(given) == 1 else given
        if len(decays) != len(self.layers):
            raise ValueError(
                f"alpha_decay has {len(decays)} numbers for {len(self.layers)} layers; give one "
                f"for all, or one for each"
            )
        self.decays = {layer.name: decay for layer, decay in zip(self.layers, decays)}
        # changed in place, as a GPU replays recorded steps
        self.projectors = {
            layer.name: torch.eye(layer.dim).to(layer.weight.detach()) for layer in self.layers
        }
        self.means = {name: P.new_zeros(len(P)) for name, P in self.projectors.items()}
        self.done = torch.zeros((), device=self.device)  # share of the task

    def start_task(self, number: int) -> None:
        self.done.zero_()

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        for name, rows in self.last_rows().items():
            self.means[name].copy_(rows.mean(0))
        return out

    def gradients(self, number: int) -> None:
        self.project(number)
        self.done += 1 / self.steps(number)
        if self.settings.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)

    def projected(self, gradient: Tensor, layer: MatrixLayer) -> Tensor:
        P, x = self.projectors[layer.name], self.means[layer.name]
        alpha = self.settings.alpha * self.decays[layer.name] ** self.done
        Px = P @ x
        # rounding can make xᵀ P x negative, and then α + xᵀ P x could reach 0
        half = Px / (alpha + (x @ Px).clamp_min(0)).sqrt()
        P.sub_(torch.outer(half, half))  # stays symmetric to the last bit
        return gradient @ P

    def stored_numbers(self) -> int:
        return sum(P.numel() for P in self.projectors.values())
