"""Trust region gradient projection (Lin, Yang, Fan & Zhang 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.experiments.methods.relatives.gpm import Gpm, GpmSettings
from conceptors.experiments.methods.relatives.layers import (
    MatrixLayer,
    drawn_inputs,
    drawn_samples,
    rows,
)
from conceptors.experiments.methods.relatives.own_parts import (
    LearnerWithOwnParts,
    OwnPart,
    OwnPartsSettings,
)
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class TrgpSettings(OwnPartsSettings, GpmSettings):
    trust: float = setting(
        0.5,
        "an old task is trusted in a layer if its directions hold this share of the gradient",
        each=True,
    )
    trusted: int = setting(2, "trusted tasks a layer at most, those with the largest shares")


class Trgp(LearnerWithOwnParts, Gpm):
    """GPM, and in layers where earlier tasks are related, their directions scaled for this task.

    Before task t, g is a layer's loss gradient on its samples. An old task with directions M_j is
    trusted there if ‖g M_j M_jᵀ‖ ≥ trust ‖g‖. For the two with the largest shares, the layer uses
    W + Σ_j (W M_j) (S_j - I) M_jᵀ; the S_j start at I, are learned without projection, and belong
    to task t. W itself learns as in GPM, so that it keeps W M_j.

    M_j are those directions of the memory that hold most of the energy of task j's rows, as many as
    make up ε of it: as in the paper old directions count as much as new ones. Which new ones join
    the memory is GPM's rule here, where the paper ranks them together with the old ones.
    """

    name: ClassVar[str] = "trgp"
    about: ClassVar[str] = "trust region gradient projection (Lin, Yang, Fan & Zhang 2022)"
    settings_type: ClassVar[type[Settings]] = TrgpSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # which directions of the memory each old task uses, [g, r] of the memory then
        self.used: dict[MatrixLayer, list[Tensor]] = {layer: [] for layer in self.layers}

    def start_task(self, number: int) -> None:
        super().start_task(number)
        self.begin({})
        if not number or not self.settings.trusted:
            return
        for layer, gradient in self._first_gradients(number).items():
            bases = self._trusted(layer, gradient)
            if bool(bases.any()):
                self.parts[number][layer] = OwnPart(bases)

    def end_task(self, number: int) -> None:
        s = self.settings
        with self.weights_of(number):
            super().end_task(number)
            inputs = drawn_inputs(self, number, s.samples)
            found = rows(self.model, self.layers, [inputs], s.rows, number)
        for place, layer in enumerate(self.layers):
            R = found[layer.name].double()
            energies = (R @ self.memory[layer.name].basis).square().sum(1)  # [g, r]
            enough = self.share(place, number) * R.square().sum((1, 2))
            self.used[layer].append(largest(energies, enough))

    def _first_gradients(self, number: int) -> dict[MatrixLayer, Tensor]:
        """Loss gradients `[g, out, d]` before the first step."""
        x, y = drawn_samples(self, number, self.settings.samples)
        self.model.zero_grad(set_to_none=True)  # of the last task's last step
        self.loss(self.forward(x), y, number).sum().backward()
        found = {layer: layer.gradient() for layer in self.layers}
        self.model.zero_grad(set_to_none=True)
        return {layer: gradient for layer, gradient in found.items() if gradient is not None}

    def _trusted(self, layer: MatrixLayer, gradient: Tensor) -> Tensor:
        """M_j of the trusted tasks `[g, k, d, r]`, zeros where a seed has fewer."""
        basis = self.memory[layer.name].basis  # [g, d, r]
        used = basis.new_zeros(len(basis), len(self.used[layer]), basis.shape[2])
        for j, own in enumerate(self.used[layer]):
            used[:, j, : own.shape[1]] = own  # the memory has grown at its end
        g = gradient.to(basis)
        inside = (used @ (g @ basis).square().sum(1)[..., None])[..., 0].sqrt()  # [g, tasks]
        shares = inside / g.square().sum((1, 2))[:, None].sqrt()
        found, tasks = shares.topk(min(self.settings.trusted, shares.shape[1]), dim=1)  # [g, k]
        trusted = found >= self.each("trust", len(found))[:, None]
        wanted = (used.take_along_dim(tasks[..., None], 1) > 0) & trusted[..., None]
        return picked(basis, wanted).to(gradient)

    def stored_numbers(self) -> list[int]:
        """GPM's directions and the learned S."""
        totals = super().stored_numbers()
        for part in (part for own in self.parts for part in own.values()):
            for seed, count in self.by_seed(part.ranks.square().sum(1)):
                totals[seed] += count
        return totals


def largest(energies: Tensor, enough: Tensor) -> Tensor:
    """Which energies `[g, r]`, the largest first, it takes to reach so much `[g]`."""
    ordered, order = energies.sort(dim=1, descending=True, stable=True)
    before = ordered.cumsum(1) - ordered
    needed = (before < enough[:, None]) & (ordered > 0)
    return torch.zeros_like(needed).scatter(1, order, needed)


def picked(basis: Tensor, wanted: Tensor) -> Tensor:
    """The wanted `[g, k, r]` columns of a basis `[g, d, r]` as `[g, k, d, most]`, then zeros."""
    most = int(wanted.sum(2).amax()) if wanted.numel() else 0
    order = wanted.int().argsort(dim=2, descending=True, stable=True)[..., :most]  # [g, k, most]
    columns = basis[:, None].take_along_dim(order[:, :, None], 3)
    return columns * wanted.take_along_dim(order, 2)[:, :, None]
