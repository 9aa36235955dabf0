"""Orthogonal weights modification (Zeng, Chen, Cui & Yu 2019)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.experiments.methods.projected import MatrixLayer, ProjectedLearner
from conceptors.experiments.methods.settings import Settings, setting

_LONGEST = 10.0  # norm to which the projected gradient of all parameters is clipped


@dataclass(frozen=True)
class OwmSettings(Settings):
    alpha_decay: str = setting("0.1", "α at the end of a task; one per layer: 0.9,1,0.6")


class Owm(ProjectedLearner):
    """Each layer's gradient is multiplied by P, which recursive least squares updates.

    P starts at I. At every step, of the first task too, with x the mean input row of the batch:

        k = P x / (α + xᵀ P x),    P ← P - k (P x)ᵀ,    g ← g P.

    With one α that is P = α (α I + Σ x xᵀ)⁻¹. α falls exponentially within each task, from 1. In
    convolutions x is the mean over patches too, which the paper's code goes through one by one.
    """

    name = "owm"
    about = "orthogonal weights modification (Zeng et al. 2019)"
    settings_type = OwmSettings
    projects_first_task = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        decays = [float(word) for word in self.settings.alpha_decay.split(",")]
        if len(decays) not in (1, len(self.layers)):
            raise ValueError(
                f"alpha_decay has {len(decays)} numbers for {len(self.layers)} layers. "
                "Give one number for all layers, or one for each"
            )
        self.decays = dict(zip(self.layers, decays * (len(self.layers) // len(decays))))
        # changed in place, as a GPU replays recorded steps
        self.projectors = {
            layer: torch.eye(layer.dim).to(layer.weight.detach()) for layer in self.layers
        }
        self.done = torch.zeros((), device=self.device)  # share of the task

    def start_task(self, number: int) -> None:
        self.done.zero_()

    def gradients(self, number: int) -> None:
        super().gradients(number)
        self.done += 1 / self.steps(number)
        nn.utils.clip_grad_norm_(self.model.parameters(), _LONGEST)

    def projected(self, gradient: Tensor, layer: MatrixLayer) -> Tensor:
        P, x = self.projectors[layer], layer.rows().mean(0)
        alpha = self.decays[layer] ** self.done
        Px = P @ x
        # rounding can make xᵀ P x negative, and then α + xᵀ P x could reach 0
        half = Px / (alpha + (x @ Px).clamp_min(0)).sqrt()
        P.sub_(torch.outer(half, half))  # stays symmetric to the last bit
        return gradient @ P
