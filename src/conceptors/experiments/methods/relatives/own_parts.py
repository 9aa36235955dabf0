"""Per-task parameters inside the space that earlier tasks use.

TRGP and CODE-CL let a task use W + Σ_k (W U_k) D_k U_kᵀ instead of W: within a few chosen
subspaces, spanned by the columns of U_k, the task remixes W by learned matrices D_k. Earlier tasks
still use W, so testing a task requires its task ID.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from conceptors.experiments.methods.relatives.layers import MatrixLayer, ProjectedLearner
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class OwnPartsSettings(Settings):
    own_rate: float = setting(1.0, "learning rate of the per-task matrices, relative to the others")


class OwnPart:
    """A task's part of one layer: bases U_k `[d, r_k]` and mixes D_k, which start at 0."""

    def __init__(self, layer: MatrixLayer, bases: list[Tensor]) -> None:
        self.layer = layer
        self.bases = [U.to(layer.weight.detach()) for U in bases]
        self.mixes = [nn.Parameter(U.new_zeros(U.shape[1], U.shape[1])) for U in self.bases]

    def parameters(self) -> dict[str, Tensor]:
        """W + Σ_k (W U_k) D_k U_kᵀ as the layer's parameters, by name."""
        W = matrix = self.layer.matrix()
        for U, D in zip(self.bases, self.mixes):
            matrix = matrix + W @ U @ D @ U.mT
        return self.layer.named(matrix)


class OwnPartsLearner(ProjectedLearner):
    """Trains with the parts of the current task, tests with those of the tested task."""

    needs_task_label = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.parts: list[list[OwnPart]] = []  # of every task begun

    def mixes(self) -> list[nn.Parameter]:
        """Per-task parameters of the current task."""
        return [mix for part in self.parts[-1] for mix in part.mixes]

    def trained(self) -> list[nn.Parameter]:
        return [*super().trained(), *self.mixes()]

    def gradients(self, number: int) -> None:
        super().gradients(number)
        for mix in self.mixes():
            if mix.grad is not None:
                mix.grad *= self.settings.own_rate

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs(x, len(self.parts) - 1)

    def outputs(self, x: Tensor, number: int) -> Tensor:
        parts = self.parts[number] if number < len(self.parts) else []
        replaced = {name: value for part in parts for name, value in part.parameters().items()}
        out: Tensor = functional_call(self.model, replaced, (x,))
        return out
