"""Gradient projection memory (Saha, Garg & Roy 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.relatives.layers import (
    drawn_inputs,
    matrix_layers,
    other_parameters,
    rows,
)
from conceptors.experiments.methods.relatives.subspace import Subspace
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class GpmSettings(Settings):
    threshold: float = setting(0.97, "share ε of the rows' energy that is protected", each=True)
    input_threshold: float = setting(0.0, "the same for the first layer, 0 for no other", each=True)
    increase: float = setting(0.0, "added to the threshold with every task", each=True)
    samples: int = setting(300, "images a task that directions are taken from, 0 for all")
    rows: int = setting(0, "rows (patches) of these that a layer uses at most, 0 for all")

    def check(self) -> None:
        super().check()
        for name in ("threshold", "input_threshold"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} must be a share up to 1, got {getattr(self, name)}")


class Gpm(Learner):
    """g ← g - g M Mᵀ from the second task on, M the directions that inputs of each layer had.

    After a task, each layer's M gets the leading directions of what M does not cover of this
    task's rows, as many as make it cover ε of their energy (`Subspace.extended`). This is the
    paper's rule; its code keeps one direction less after the first task. Biases are protected as
    one more column of weights. With one head per task the last layer is left alone, as other
    tasks' outputs get no gradient; parameters that are not matrices (of normalisation) stay as the
    first task left them.
    """

    name: ClassVar[str] = "gpm"
    about: ClassVar[str] = "gradient projection memory (Saha, Garg & Roy 2021)"
    settings_type: ClassVar[type[Settings]] = GpmSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.layers = matrix_layers(self.model, head=not self.scenario.heads)
        self.fixed = other_parameters(self.model, matrix_layers(self.model))
        self.memory: dict[str, Subspace] = {}
        for layer in self.layers:
            groups, _, dim = layer.shape
            self.memory[layer.name] = Subspace.empty(groups, dim, self.device)
        self.factors: dict[str, tuple[Tensor, ...]] = {}

    def gradients(self, number: int) -> None:
        if not number:
            return
        for layer in self.layers:
            gradient = layer.gradient()
            if gradient is None:
                continue
            protected = gradient
            for factor in self.factors[layer.name]:
                protected = protected @ factor
            layer.set_gradient(gradient - protected)
        for parameter in self.fixed:
            if parameter.grad is not None:
                parameter.grad.zero_()

    def end_task(self, number: int) -> None:
        s = self.settings
        found = rows(
            self.model, self.layers, [drawn_inputs(self, number, s.samples)], s.rows, number
        )
        for place, layer in enumerate(self.layers):
            old = self.memory[layer.name]
            new = old.extended(found[layer.name], self.share(place, number), self.weigh)
            self.memory[layer.name] = new
            self.factors[layer.name] = new.factors(layer.weight.detach())
        self._record_ranks()

    def share(self, place: int, number: int) -> Tensor:
        """ε of a layer, by its place, after a task `[g]`."""
        groups = self.layers[place].shape[0]
        first, own = self.each("threshold", groups), self.each("input_threshold", groups)
        if place == 0:
            first = torch.where(own > 0, own, first)
        return (first + self.each("increase", groups) * number).clamp_max(1)

    def weigh(self, so_far: Tensor, strengths: Tensor) -> Tensor:
        """Importances `[g, r]` of directions after a task: all of them count fully."""
        return torch.ones_like(strengths)

    def stored_numbers(self) -> list[int]:
        """Numbers of the directions of each seed."""
        totals = [0] * len(self.seeds)
        for subspace in self.memory.values():
            for i, rank in enumerate(subspace.ranks):  # groups of a seed are side by side
                seed = i * len(totals) // len(subspace.ranks)
                totals[seed] += rank * self.numbers_a_direction(subspace)
        return totals

    def numbers_a_direction(self, subspace: Subspace) -> int:
        return subspace.basis.shape[1]

    def _record_ranks(self) -> None:
        """How many directions each layer has, for the results."""
        for name, subspace in self.memory.items():
            each = len(subspace.ranks) // len(self.extras)
            for i, extra in enumerate(self.extras):
                own = sum(subspace.ranks[i * each : (i + 1) * each])
                extra.setdefault("directions", {}).setdefault(name, []).append(own)
