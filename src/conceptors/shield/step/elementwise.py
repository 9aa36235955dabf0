"""Blocks of one or two columns a group, number by number: embeddings and norm layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from conceptors._internal.precision import full
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.memory import Memory, side_by_side
from conceptors.shield.step.strategy import Pull, Way, claimed


class Tokens:
    """One column a group: every token's vector `[out]` has one number F^½ of its own.

    Only tokens that were met are looked at.
    """

    def __init__(
        self, weights: Memory, gradients: Memory, met: Tensor, gain: Tensor, pull: Pull | None
    ) -> None:
        self.weights, self.gradients = weights, gradients
        self.met, self.gain, self.pull = met, gain, pull  # [tokens], [tokens, 1, 1]
        self.noted = weights.load()[0][met]  # also where a plan resumes, and nothing is noted anew

    def note(self) -> None:
        self.noted.copy_(self.weights.load()[0][self.met])

    def project(self) -> None:
        (block,) = self.gradients.load()
        found = full(block[self.met]) * (1 - self.gain)
        if self.pull is not None:
            found += self.pull.of(full(self.noted))
        block.index_copy_(0, self.met, found.to(block.dtype))
        self.gradients.store()

    def correct(self) -> None:
        (block,) = self.weights.load()
        now = full(block[self.met])
        self.noted.copy_(now.lerp(full(self.noted), self.gain))
        block.index_copy_(0, self.met, self.noted)
        self.weights.store()

    def passing(self, once: bool) -> Tensor:
        (block,) = self.gradients.load()
        whole = full(block).square().sum()
        taken = (full(block[self.met]).square() * claimed(self.gain, once)).sum()
        return torch.stack([whole - taken, whole])

    def moved(self, once: bool) -> Tensor:
        noted, values = full(self.noted), claimed(self.gain, once)
        added = full(self.weights.load()[0][self.met]) - noted
        return torch.stack([(x.square() * values).sum() for x in (added, noted)])


class Small:
    """Few columns a group, each group with a matrix of its own: ΔW F^½ = ΔW - ΔW M.

    Many such layers of one shape of group are done together, see `batched`.
    """

    def __init__(
        self,
        weights: Sequence[Memory],
        gradients: Sequence[Memory],
        taken: Tensor,
        pull: tuple[Tensor, Tensor] | None,
        scale: Tensor,
    ) -> None:
        self.weights, self.gradients = weights, gradients
        self.taken, self.pull, self.scale = taken, pull, scale  # [g, d, d], (the same, W_before)
        self.noted = self._now(weights)

    def note(self) -> None:
        self.noted.copy_(self._now(self.weights))

    def project(self) -> None:
        found = self._now(self.gradients)
        change = -_small_product(found, self.taken)
        if self.pull is not None:
            weight, origin = self.pull
            change += _small_product(self.noted - origin, weight) * self.scale
        self._put(self.gradients, found + change)

    def correct(self) -> None:
        now = self._now(self.weights)
        now -= _small_product(now - self.noted, self.taken)
        self._put(self.weights, now)
        self.noted.copy_(self._now(self.weights))

    def passing(self, once: bool) -> Tensor:
        found = self._now(self.gradients)
        left = found - _small_product(found, self.taken)
        return torch.stack([((found if once else left) * left).sum(), found.square().sum()])

    def moved(self, once: bool) -> Tensor:
        added = self._now(self.weights) - self.noted
        return torch.stack([(_small_product(x, self.taken) * x).sum() for x in (added, self.noted)])

    @staticmethod
    def _now(memories: Sequence[Memory]) -> Tensor:
        found = torch.cat([side_by_side(memory.load()) for memory in memories])
        return full(found.clone() if len(memories) == 1 else found)

    @staticmethod
    def _put(memories: Sequence[Memory], found: Tensor) -> None:
        blocks = [block for memory in memories for block in memory.blocks]
        parts = []
        for part, memory in zip(found.split([len(m.blocks[0]) for m in memories]), memories):
            parts += part.split([block.shape[-1] for block in memory.blocks], -1)
        torch._foreach_copy_(blocks, parts)
        for memory in memories:
            memory.store()


def _small_product(left: Tensor, right: Tensor) -> Tensor:
    """left `[g, out, d]` times right `[g, d, d]` for small d: a few sums beat many products."""
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
    """The strategy for an embedding."""
    values = free.values[:, 0] if free.rank else free.values.new_zeros(len(free.values))
    met = (values > 0).nonzero().flatten()
    gain = free.gain(way.once)[met]
    pull, weight = None, free.pull(way.once, way.stiffest)
    if weight is not None and anchor is not None:
        pull = Pull(weight[met], full(anchor[met]), scale)
    return Tokens(weights, gradients, met, gain, pull)


def make_small(
    free: FreeSpace,
    weights: Memory,
    gradients: Memory,
    anchor: Tensor | None,
    scale: Tensor,
    way: Way,
) -> Small:
    """The strategy for a norm layer."""
    order = torch.cat(weights.columns).to(free.vectors.device)
    vectors = free.vectors[:, order]
    pull, weight = None, free.pull(way.once, way.stiffest)
    if weight is not None and anchor is not None:
        pull = ((vectors * weight) @ vectors.mT, full(anchor).clone())
    taken = (vectors * free.gain(way.once)) @ vectors.mT
    return Small([weights], [gradients], taken, pull, scale)
