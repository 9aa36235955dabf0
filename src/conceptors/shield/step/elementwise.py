"""Project blocks of one or two columns per group element by element: embeddings, norm layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from conceptors._internal.precision import full
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.memory import Memory, side_by_side
from conceptors.shield.step.strategy import Pull, Way, claimed


class Tokens:
    """The strategy of a block with one column per group: F^½ is one number per token.

    Only tokens that occurred in remembered tasks are read and written.
    """

    def __init__(
        self, weights: Memory, gradients: Memory, tokens: Tensor, gain: Tensor, pull: Pull | None
    ) -> None:
        self.weights, self.gradients = weights, gradients
        self.tokens, self.gain, self.pull = tokens, gain, pull  # [n], [n, 1, 1]
        self.noted = weights.load()[0][tokens]  # a resumed plan does not call `note`

    def note(self) -> None:
        self.noted.copy_(self.weights.load()[0][self.tokens])

    def project(self) -> None:
        (block,) = self.gradients.load()
        projected = full(block[self.tokens]) * (1 - self.gain)
        if self.pull is not None:
            projected += self.pull.of(full(self.noted))
        block.index_copy_(0, self.tokens, projected.to(block.dtype))
        self.gradients.store()

    def correct(self) -> None:
        (block,) = self.weights.load()
        now = full(block[self.tokens])
        self.noted.copy_(now.lerp(full(self.noted), self.gain))
        block.index_copy_(0, self.tokens, self.noted)
        self.weights.store()

    def passing(self, once: bool) -> Tensor:
        (block,) = self.gradients.load()
        total = full(block).square().sum()
        removed = (full(block[self.tokens]).square() * claimed(self.gain, once)).sum()
        return torch.stack([total - removed, total])

    def moved(self, once: bool) -> Tensor:
        noted, values = full(self.noted), claimed(self.gain, once)
        added = full(self.weights.load()[0][self.tokens]) - noted
        return torch.stack([(x.square() * values).sum() for x in (added, noted)])


class Small:
    """The strategy of blocks with few columns, with one matrix per group: ΔW F^½ = ΔW - ΔW M.

    Layers with equal shapes of groups are processed together, see `batched`.
    """

    def __init__(
        self,
        weights: Sequence[Memory],
        gradients: Sequence[Memory],
        gain: Tensor,
        pull: tuple[Tensor, Tensor] | None,
        scale: Tensor,
    ) -> None:
        self.weights, self.gradients = weights, gradients
        self.gain, self.pull, self.scale = gain, pull, scale  # [g, d, d], (the same, W_before)
        self.noted = self._now(weights)

    def note(self) -> None:
        self.noted.copy_(self._now(self.weights))

    def project(self) -> None:
        gradients = self._now(self.gradients)
        change = -_small_product(gradients, self.gain)
        if self.pull is not None:
            weight, origin = self.pull
            change += _small_product(self.noted - origin, weight) * self.scale
        self._put(self.gradients, gradients + change)

    def correct(self) -> None:
        now = self._now(self.weights)
        now -= _small_product(now - self.noted, self.gain)
        self._put(self.weights, now)
        self.noted.copy_(self._now(self.weights))

    def passing(self, once: bool) -> Tensor:
        gradients = self._now(self.gradients)
        projected = gradients - _small_product(gradients, self.gain)
        applied = ((gradients if once else projected) * projected).sum()
        return torch.stack([applied, gradients.square().sum()])

    def moved(self, once: bool) -> Tensor:
        added = self._now(self.weights) - self.noted
        return torch.stack([(_small_product(x, self.gain) * x).sum() for x in (added, self.noted)])

    @staticmethod
    def _now(memories: Sequence[Memory]) -> Tensor:
        matrix = torch.cat([side_by_side(memory.load()) for memory in memories])
        return full(matrix.clone() if len(memories) == 1 else matrix)

    @staticmethod
    def _put(memories: Sequence[Memory], matrix: Tensor) -> None:
        blocks = [block for memory in memories for block in memory.blocks]
        parts = []
        for part, memory in zip(matrix.split([len(m.blocks[0]) for m in memories]), memories):
            parts += part.split([block.shape[-1] for block in memory.blocks], -1)
        torch._foreach_copy_(blocks, parts)
        for memory in memories:
            memory.store()


def _small_product(left: Tensor, right: Tensor) -> Tensor:
    """Compute left `[g, out, d]` @ right `[g, d, d]`; for small d, a few sums are faster."""
    columns = [left[..., i, None] * right[:, None, i] for i in range(left.shape[-1])]
    return torch.stack(columns).sum(0) if len(columns) > 1 else columns[0]


def make_tokens(
    free: FreeSpace,
    weights: Memory,
    gradients: Memory,
    anchor: Tensor | None,
    scale: Tensor,
    way: Way,
) -> Tokens:
    """Create the strategy for an embedding."""
    values = free.values[:, 0] if free.rank else free.values.new_zeros(len(free.values))
    tokens = (values > 0).nonzero().flatten()
    gain = free.gain(way.once)[tokens]
    pull, weight = None, free.pull(way.once, way.stiffest)
    if weight is not None and anchor is not None:
        pull = Pull(weight[tokens], full(anchor[tokens]), scale)
    return Tokens(weights, gradients, tokens, gain, pull)


def make_small(
    free: FreeSpace,
    weights: Memory,
    gradients: Memory,
    anchor: Tensor | None,
    scale: Tensor,
    way: Way,
) -> Small:
    """Create the strategy for a norm layer."""
    order = torch.cat(weights.columns).to(free.vectors.device)
    vectors = free.vectors[:, order]
    pull, weight = None, free.pull(way.once, way.stiffest)
    if weight is not None and anchor is not None:
        pull = ((vectors * weight) @ vectors.mT, full(anchor).clone())
    gain = (vectors * free.gain(way.once)) @ vectors.mT
    return Small([weights], [gradients], gain, pull, scale)
