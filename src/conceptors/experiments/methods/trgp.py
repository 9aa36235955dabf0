"""Trust region gradient projection (Lin, Yang, Fan & Zhang 2022)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conceptors.experiments.methods.gpm import Gpm, GpmSettings
from conceptors.experiments.methods.projected import MatrixLayer, RemixLearner, joined
from conceptors.experiments.methods.settings import setting

_TRUSTED = 2  # old tasks per layer at most, those with the largest shares


@dataclass(frozen=True)
class TrgpSettings(GpmSettings):
    trust: float = setting(
        0.5, "trust an old task in a layer if its directions cover this share of the gradient"
    )
    own_rate: float = setting(1.0, "learning rate of the per-task matrices, relative to the others")


class Trgp(RemixLearner, Gpm):
    """GPM, and where earlier tasks are related, a per-task scaling of their directions.

    Before task t, g is a layer's loss gradient on its samples. An old task with directions M_j is
    trusted there if ‖g M_j M_jᵀ‖ ≥ trust ‖g‖. For the two with the largest shares, the layer uses
    W + Σ_j (W M_j) (S_j - I) M_jᵀ; the S_j start at I, are learned without projection, and belong
    to task t. W itself learns as in GPM, so W M_j does not change.

    M_j are the directions of the memory with most of the energy of task j's rows, as many as make
    up ε of it. New directions join the memory by GPM's rule; the paper ranks all together.
    """

    name = "trgp"
    about = "trust region gradient projection (Lin, Yang, Fan & Zhang 2022)"
    settings_type = TrgpSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # the columns of the memory that each old task uses
        self.used: dict[MatrixLayer, list[Tensor]] = {layer: [] for layer in self.layers}

    def start_task(self, number: int) -> None:
        super().start_task(number)
        if number == 0:
            return
        x, y = self.drawn_samples(number)
        loss = self.loss(self.forward(x), y, number).sum()
        for layer in self.layers:
            gradients = torch.autograd.grad(loss, [*layer.parameters.values()], retain_graph=True)
            gradient = joined(gradients).double()
            bases = [self.bases[layer][:, columns] for columns in self.used[layer]]
            shares = torch.stack([(gradient @ M).norm() for M in bases]) / gradient.norm()
            for j in shares.argsort(descending=True, stable=True)[:_TRUSTED].tolist():
                if shares[j] >= self.settings.trust:
                    self.add_remix(layer, bases[j])

    def gradients(self, number: int) -> None:
        super().gradients(number)
        for remix in self.remixes[-1]:
            if remix.mix.grad is not None:
                remix.mix.grad *= self.settings.own_rate

    def end_task(self, number: int) -> None:
        super().end_task(number)
        for layer, rows in self.drawn_rows(number).items():
            energies = (rows @ self.bases[layer]).square().sum(0)
            ordered, order = energies.sort(descending=True, stable=True)
            missing = self.share(layer, number) * rows.square().sum() - (
                ordered.cumsum(0) - ordered
            )
            self.used[layer].append(order[: int(((missing > 0) & (ordered > 0)).sum())])
