"""Blocks of matrices against A itself `[g, d, d]`: where most directions are claimed, one product.

For plain SGD, whose steps are left alone. G F and the pull c (W - W_before) A are both against A:

    G F + c (W - W_before) A = G - H A,   H = G - c (W - W_before)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from conceptors._internal.precision import tensor_cores
from conceptors.shield.step.factored import pays_to_split
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.memory import Memory
from conceptors.shield.step.numbers import rounded
from conceptors.shield.step.strategy import Way


class Against:
    """H A for H in blocks `[g, out, k]`, with A cut into the columns that they have."""

    def __init__(self, claimed: Tensor, columns: Sequence[Tensor], like: Tensor) -> None:
        places = [at.to(claimed.device) for at in columns]
        self._cut = [
            [claimed[:, one][:, :, other].contiguous() for other in places] for one in places
        ]
        self._halves: tuple[Tensor, Tensor] | None = None  # the first, in numbers that TF32 holds
        if pays_to_split(like, claimed.shape[-1]):
            high = rounded(self._cut[0][0])
            self._halves = high, self._cut[0][0] - high
            self._cut[0][0] = high  # the whole is not needed any more

    def take_off(self, taken: Sequence[Tensor], blocks: Sequence[Tensor]) -> None:
        """Subtract `taken` times A from the blocks, in place, to about float32's precision."""
        for i, left in enumerate(taken):
            for j, block in enumerate(blocks):
                if i or j or self._halves is None:
                    _subtract_product(block, left, self._cut[i][j])
                    continue
                high, low = self._halves
                coarse = rounded(left)
                fine = left - coarse
                with tensor_cores():
                    for a, b in ((coarse, high), (coarse, low), (fine, high)):
                        _subtract_product(block, a, b)

    def values(self, blocks: Sequence[Tensor]) -> Tensor:
        """<G, G A> `[]`."""
        left = [torch.zeros_like(block) for block in blocks]
        self.take_off(blocks, left)
        return -torch.stack([(g * part).sum() for g, part in zip(blocks, left)]).sum()


class Dense:
    """Weights and gradients as blocks; of the weights nothing is noted."""

    def __init__(
        self,
        against: Against,
        weights: Memory,
        gradients: Memory,
        origin: list[Tensor] | None,
        stiffness: Tensor,
        scale: Tensor,
    ) -> None:
        """`origin`: W_before in blocks, if weights are drawn back, with `stiffness` `[g, 1, 1]`."""
        self._against, self._weights, self._gradients = against, weights, gradients
        self.pull, self._stiffness, self._scale = origin, stiffness, scale
        self.noted = stiffness.new_zeros(0)

    def note(self) -> None:
        pass

    def project(self) -> None:
        blocks = self._gradients.load()
        self._against.take_off(self._taken(blocks), blocks)
        self._gradients.store()

    def _taken(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """H, in memory of its own: blocks are written while it is read."""
        if self.pull is None:
            return [block.clone() for block in blocks]
        c = -self._stiffness * self._scale
        return [
            torch.addcmul(block, now - before, c)
            for block, now, before in zip(blocks, self._weights.load(), self.pull)
        ]

    def correct(self) -> None:
        raise RuntimeError("steps are left alone where gradients are projected once and for all")

    def passing(self, once: bool) -> Tensor:
        blocks = self._gradients.load()
        whole = torch.stack([block.square().sum() for block in blocks]).sum()
        return torch.stack([whole - self._against.values(blocks), whole])

    def moved(self, once: bool) -> Tensor:
        return self._stiffness.new_zeros(2)  # nothing is noted


def make_dense(
    free: FreeSpace,
    weights: Memory,
    gradients: Memory,
    anchor: Tensor | None,
    scale: Tensor,
    way: Way,
) -> Dense:
    """The strategy for one block; see `make_factored`."""
    against = Against(free.claimed(), weights.columns, weights.blocks[0])
    stiffness = free.bounded_stiffness(way.stiffest)
    origin = None
    if stiffness is not None and anchor is not None:
        parts = anchor.split([block.shape[-1] for block in weights.blocks], -1)
        origin = [part.contiguous() for part in parts]
    c = scale.new_zeros(1) if stiffness is None else stiffness
    return Dense(against, weights, gradients, origin, c[:, None, None], scale)


def _subtract_product(block: Tensor, left: Tensor, right: Tensor) -> None:
    """Subtract left @ right, in place; one matrix at a time is faster than a batch of one."""
    if len(block) == 1:
        block[0].addmm_(left[0], right[0], alpha=-1)
    else:
        block.baddbmm_(left, right, alpha=-1)
