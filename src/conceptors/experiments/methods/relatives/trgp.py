"""Trust region gradient projection (Lin, Yang, Fan & Zhang 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from conceptors.experiments.methods.relatives.gpm import Gpm, GpmSettings
from conceptors.experiments.methods.relatives.layers import MatrixLayer, joined
from conceptors.experiments.methods.relatives.own_parts import (
    OwnPart,
    OwnPartsLearner,
    OwnPartsSettings,
)
from conceptors.experiments.methods.settings import setting


@dataclass(frozen=True)
class TrgpSettings(OwnPartsSettings, GpmSettings):
    trust: float = setting(
        0.5, "trust an old task in a layer if its directions cover this share of the gradient"
    )
    trusted: int = setting(2, "trusted tasks per layer at most, those with the largest shares")


class Trgp(OwnPartsLearner, Gpm):
    """GPM, and where earlier tasks are related, a per-task scaling of their directions.

    Before task t, g is a layer's loss gradient on its samples. An old task with directions M_j is
    trusted there if ‖g M_j M_jᵀ‖ ≥ trust ‖g‖. For the two with the largest shares, the layer uses
    W + Σ_j (W M_j) (S_j - I) M_jᵀ; the S_j start at I, are learned without projection, and belong
    to task t. W itself learns as in GPM, so W M_j does not change.

    M_j are the directions of the memory with most of the energy of task j's rows, as many as make
    up ε of it. Which new directions join the memory is GPM's rule here, where the paper ranks them
    together with the old ones.
    """

    name = "trgp"
    about = "trust region gradient projection (Lin, Yang, Fan & Zhang 2022)"
    settings_type = TrgpSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # the columns of the memory that each old task uses
        self.used: dict[str, list[Tensor]] = {layer.name: [] for layer in self.layers}

    def start_task(self, number: int) -> None:
        super().start_task(number)
        self.parts.append([])
        if number == 0 or not self.settings.trusted:
            return
        x, y = self.drawn_samples(number)
        loss = self.loss(self.forward(x), y, number).sum()
        for layer in self.layers:
            gradients = torch.autograd.grad(loss, [*layer.parameters.values()], retain_graph=True)
            if bases := self._trusted(layer, joined(gradients).double()):
                self.parts[number].append(OwnPart(layer, bases))

    def _trusted(self, layer: MatrixLayer, gradient: Tensor) -> list[Tensor]:
        """M_j of the trusted tasks, those with the largest shares of the gradient first."""
        candidates = [self.bases[layer.name][:, columns] for columns in self.used[layer.name]]
        shares = torch.stack([(gradient @ M).norm() for M in candidates]) / gradient.norm()
        ranked = shares.argsort(descending=True, stable=True)[: self.settings.trusted]
        return [candidates[j] for j in ranked.tolist() if shares[j] >= self.settings.trust]

    def end_task(self, number: int) -> None:
        super().end_task(number)
        for name, rows in self.drawn_rows(number).items():
            energies = (rows @ self.bases[name]).square().sum(0)
            enough = self.share(name, number) * rows.square().sum()
            self.used[name].append(largest(energies, enough))

    def stored_numbers(self) -> int:
        """GPM's directions and the learned S."""
        mixes = [mix for parts in self.parts for part in parts for mix in part.mixes]
        return super().stored_numbers() + sum(mix.numel() for mix in mixes)


def largest(energies: Tensor, enough: Tensor) -> Tensor:
    """Places of the largest energies that together reach `enough`."""
    ordered, order = energies.sort(descending=True, stable=True)
    needed = (ordered.cumsum(0) - ordered < enough) & (ordered > 0)
    return order[: int(needed.sum())]
