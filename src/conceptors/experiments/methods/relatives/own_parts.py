"""What a task changes for itself alone, inside the space that earlier tasks use.

Trust Region Gradient Projection and CODE-CL both let a task use W + Σ_k (W U_k) D_k U_kᵀ instead of
W: within a few chosen subspaces, spanned by the columns of U_k, what W does there is mixed anew by
learned matrices D_k, which belong to their task. At 0 they change nothing. W keeps what earlier
tasks need, and testing a task needs to know which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.relatives.layers import MatrixLayer
from conceptors.experiments.methods.schedule import like
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class OwnPartsSettings(Settings):
    own_rate: float = setting(
        1.0, "learning rate of a task's own S, as a multiple of the others'", each=True
    )


class OwnPart:
    """A task's part of one layer: k subspaces of at most r directions, for every seed.

    Args:
        bases: U `[g, k, d, r]` of orthonormal columns, and zeros where a seed has fewer of them:
            those change nothing, and their rows and columns of D stay 0.
        mix: what D `[g, k, r, r]` starts at, 0 by default.
    """

    def __init__(self, bases: Tensor, mix: Tensor | None = None) -> None:
        used = (bases != 0).any(2)  # [g, k, r]
        self.ranks = used.sum(2)  # directions of every subspace [g, k]
        both = (used[..., None] & used[..., None, :]).to(bases)
        self.mix = nn.Parameter(torch.zeros_like(both) if mix is None else both * mix.to(both))
        self._columns = bases.transpose(1, 2).flatten(2)  # [g, d, k r]: all in two products

    def effective(self, matrix: Tensor) -> Tensor:
        """W + Σ_k (W U_k) D_k U_kᵀ of W `[g, out, d]`."""
        inside = (matrix @ self._columns).unflatten(2, self.mix.shape[1:3])  # [g, out, k, r]
        mixed = torch.einsum("gokr,gkrq->gokq", inside, self.mix)
        return torch.baddbmm(matrix, mixed.flatten(2), self._columns.mT)


class LearnerWithOwnParts(Learner):
    """Training with the parts of the task at hand, testing with those of the task tested."""

    needs_task_label: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._own_rates = self.each("own_rate").float()  # made here, as steps may be recorded
        self.parts: list[dict[MatrixLayer, OwnPart]] = []  # one entry per task begun
        self._names = {id(p): name for name, p in self.model.named_parameters()}

    def begin(self, parts: dict[MatrixLayer, OwnPart]) -> None:
        """The next task starts, and these are its own."""
        for part in self.parts[-1].values() if self.parts else ():
            part.mix.requires_grad_(False)  # learned with its task, and never again
            part.mix.grad = None
        self.parts.append(parts)

    def trained(self) -> list[nn.Parameter]:
        return [*super().trained(), *(part.mix for part in self.parts[-1].values())]

    def gradients(self, number: int) -> None:
        super().gradients(number)
        for part in self.parts[number].values():
            if part.mix.grad is not None:
                rates = self._own_rates.repeat_interleave(len(part.mix) // len(self.seeds))
                part.mix.grad *= like(rates, part.mix)

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs(x, len(self.parts) - 1)

    def outputs(self, x: Tensor, number: int) -> Tensor:
        parts = self.parts[number] if number < len(self.parts) else {}
        used: dict[str, Tensor] = {}
        for layer, part in parts.items():
            values = layer.as_parameters(part.effective(layer.live_matrix()))
            used |= {self._names[id(p)]: v for p, v in zip(layer.parameters, values, strict=True)}
        out: Tensor = functional_call(self.model, used, (x,)) if used else self.model(x)
        return out

    @contextmanager
    def weights_of(self, number: int) -> Iterator[None]:
        """Inside, the model itself has the weights that a task uses."""
        kept = {layer: layer.matrix().clone() for layer in self.parts[number]}
        try:
            with torch.no_grad():
                for layer, part in self.parts[number].items():
                    layer.set_matrix(part.effective(kept[layer]))
            yield
        finally:
            for layer, matrix in kept.items():
                layer.set_matrix(matrix)

    def by_seed(self, counts: Tensor) -> Iterator[tuple[int, int]]:
        """(place of the seed, count) for counts `[g]`: groups of a seed are side by side."""
        for i, count in enumerate(counts.tolist()):
            yield i * len(self.seeds) // len(counts), count
