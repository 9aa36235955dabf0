"""CODE-CL: conceptor-based gradient projection (Apolinario, Choudhary & Roy 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.algebra.conceptor import Conceptor
from conceptors.experiments.methods.relatives.layers import (
    MatrixLayer,
    drawn_inputs,
    matrix_layers,
    other_parameters,
    rows,
)
from conceptors.experiments.methods.relatives.own_parts import (
    LearnerWithOwnParts,
    OwnPart,
    OwnPartsSettings,
)
from conceptors.experiments.methods.settings import Settings, setting

_WIDER = 1.1  # factor by which an aperture grows until enough is kept
_TRIES = 200  # 1.1²⁰⁰ is 2 · 10⁸


@dataclass(frozen=True)
class CodeClSettings(OwnPartsSettings):
    aperture: float = setting(
        6.0, "of all conceptors; its authors: 6 CIFAR, 8 ImageNet, 4 mixed", each=True
    )
    kept: float = setting(
        0.95, "grow the aperture until ‖Cx‖ is this share of ‖x‖; 0 for never; below 1", each=True
    )
    least: float = setting(0.2, "singular values below this become 0, in what is kept or compared")
    samples: int = setting(125, "images a task for the conceptors, 0 for all")
    free: int = setting(80, "directions freed in a layer where tasks overlap; 0 for none")
    overlap: float = setting(
        0.5,
        "free them where the quota of (old AND new) is more than this share of old's",
        each=True,
    )
    start: str = setting(
        "same",
        "what freed directions begin with: what W does there, or W mixed at random, as in its code",
        choices=("same", "random"),
    )

    def check(self) -> None:
        if not self.kept < 1 or not self.least < 1:
            raise ValueError(f"kept and least must be below 1, got {self.kept} and {self.least}")
        if not self.aperture > 0:
            raise ValueError(f"aperture must be above 0, got {self.aperture}")
        super().check()


class CodeCl(LearnerWithOwnParts):
    """Gradients are projected by NOT A, A the OR of all tasks' conceptors.

    Where the new task's conceptor C, taken before learning, overlaps with A, the leading directions
    U of A AND C are freed for this task alone: W + (W U) (S - I) Uᵀ with a learned S. Overlap is,
    as in the authors' code, the quota of A AND C as a share of A's. Layers with no more inputs than
    `free` are left alone, and so are directions that A AND C does not claim.

    Biases are one more column of weights, and parameters that are not matrices (of normalisation)
    stay as the first task left them. With one head per task the last layer is not projected.
    """

    name: ClassVar[str] = "codecl"
    about: ClassVar[str] = "CODE-CL: conceptor-based projection, overlaps freed (Apolinario 2024)"
    settings_type: ClassVar[type[Settings]] = CodeClSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.layers = matrix_layers(self.model, head=not self.scenario.heads)
        self.claimed: dict[MatrixLayer, Conceptor] = {}  # A
        self._matrices: dict[MatrixLayer, Tensor] = {}  # of A, while a task is learned
        self._fixed = other_parameters(self.model, matrix_layers(self.model))

    def start_task(self, number: int) -> None:
        self.begin({})  # new data is seen with the weights as they are
        found = self._conceptors(number) if number and self.settings.free else {}
        for layer, new in found.items():
            if layer.shape[2] > self.settings.free:
                shared = self._shared(self.claimed[layer], pruned(new, self.settings.least))
                if bool(shared.any()):
                    self.parts[number][layer] = self._freed(shared, layer, number)
        self._matrices = {
            layer: claimed.matrix().to(layer.weight) for layer, claimed in self.claimed.items()
        }

    def gradients(self, number: int) -> None:
        super().gradients(number)
        if not number:
            return
        for layer, claimed in self._matrices.items():
            gradient = layer.gradient()
            if gradient is not None:
                layer.set_gradient(torch.baddbmm(gradient, gradient, claimed, alpha=-1))
        for parameter in self._fixed:
            if parameter.grad is not None:
                parameter.grad.zero_()

    def end_task(self, number: int) -> None:
        with self.weights_of(number):
            found = self._conceptors(number)
        for layer, new in found.items():
            both = self.claimed[layer] | new if layer in self.claimed else new
            self.claimed[layer] = pruned(both, self.settings.least)

    def _conceptors(self, number: int) -> dict[MatrixLayer, Conceptor]:
        """Of a task's samples, as the model's weights see them."""
        found = rows(self.model, self.layers, [drawn_inputs(self, number, self.settings.samples)])
        made = {}
        for layer in self.layers:
            states = found[layer.name].double()  # passes may be in TF32
            aperture, kept = (self.each(n, len(states)).to(states) for n in ("aperture", "kept"))
            made[layer] = wide_enough(states, aperture, kept)
        return made

    def _freed(self, shared: Tensor, layer: MatrixLayer, number: int) -> OwnPart:
        """Directions `[g, d, r]` of a layer, with the S - I that a task begins with."""
        bases = shared[:, None].to(layer.weight)
        if self.settings.start == "same":
            return OwnPart(bases)
        groups, width = len(shared), shared.shape[-1]
        place, drawn = self.layers.index(layer), []
        for seed in self.seeds:
            generator = torch.Generator().manual_seed(32_452_843 * (number + 1) + 97 * place + seed)
            wanted = (groups // len(self.seeds), width, width)
            drawn.append(torch.rand(wanted, generator=generator) * 2 - 1)
        mixed = torch.cat(drawn)[:, None] / width**0.5  # as nn.Linear draws its weights
        return OwnPart(bases, mixed.to(bases) - torch.eye(width).to(bases))

    def _shared(self, old: Conceptor, new: Conceptor) -> Tensor:
        """Leading directions of old AND new `[g, d, free]`, zeros for seeds without overlap."""
        both, free = old & new, int(self.settings.free)
        least = self.each("overlap", len(old.quota)).to(old.quota)
        overlaps = both.quota > least * old.quota
        vectors, values = descending(both)
        used = overlaps[:, None] & (values > 0)
        shared: Tensor = (vectors * used[:, None])[..., :free]
        return shared

    def stored_numbers(self) -> list[int]:
        """A as directions and values, or as a matrix if that is less; each task's U and S."""
        totals = [0] * len(self.seeds)
        for layer, claimed in self.claimed.items():
            dim = layer.shape[2]
            for seed, rank in self.by_seed((claimed.singular_values > 0).sum(1)):
                totals[seed] += min(rank * (dim + 1), dim**2)
            for part in (own[layer] for own in self.parts if layer in own):
                for seed, rank in self.by_seed(part.ranks[:, 0]):
                    totals[seed] += rank * (dim + rank)
        return totals


def wide_enough(states: Tensor, aperture: float | Tensor, kept: float | Tensor) -> Conceptor:
    """The conceptor of rows `[g, n, d]`, each group's aperture grown until Σ‖Cx‖ ≥ kept Σ‖x‖.

    Growing it by γ takes a singular value s to γ² s / (1 - s + γ² s).
    """
    vectors, values, _ = Conceptor.from_states(states, aperture).spectrum
    inside = (states @ vectors).square()  # [g, n, r]
    enough = kept * states.norm(dim=2).sum(1)  # [g]
    wider, factor = values, torch.ones_like(enough)
    for _ in range(_TRIES):
        lacking = (inside @ wider.square()[..., None]).sqrt().sum((1, 2)) < enough
        if not bool(lacking.any()):
            break
        factor = torch.where(lacking, factor * _WIDER, factor)
        grown = values * factor.square()[:, None]
        wider = torch.where(values < 1, grown / (1 - values + grown), 1.0)
    return Conceptor.from_spectrum(vectors, wider)


def pruned(conceptor: Conceptor, least: float) -> Conceptor:
    """Singular values below `least` become 0, and directions that no group uses are left out."""
    vectors, values = descending(conceptor)
    values = torch.where(values < least, 0.0, values)
    count = max(1, int((values > 0).sum(-1).amax()))
    return Conceptor.from_spectrum(vectors[..., :count], values[..., :count])


def descending(conceptor: Conceptor) -> tuple[Tensor, Tensor]:
    """Directions `[g, d, r]` and singular values `[g, r]`, the largest first."""
    vectors, values, _ = conceptor.spectrum
    values, order = values.sort(dim=-1, descending=True, stable=True)
    return vectors.take_along_dim(order.unsqueeze(-2), -1), values
