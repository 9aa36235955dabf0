"""Project gradients with A itself `[g, d, d]`: one product where most directions are claimed.

For plain SGD, whose steps are not changed. One product with A computes G F and the pull:

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


class ClaimedProduct:
    """Compute H A for H in blocks `[g, out, k]`, with A split by their columns."""

    def __init__(self, claimed: Tensor, columns: Sequence[Tensor], like: Tensor) -> None:
        places = [at.to(claimed.device) for at in columns]
        self._parts = [
            [claimed[:, one][:, :, other].contiguous() for other in places] for one in places
        ]
        self._halves: tuple[Tensor, Tensor] | None = None  # TF32 numbers of the first part
        if pays_to_split(like, claimed.shape[-1]):
            high = rounded(self._parts[0][0])
            self._halves = high, self._parts[0][0] - high
            self._parts[0][0] = high  # frees the unsplit part

    def subtract(self, factors: Sequence[Tensor], blocks: Sequence[Tensor]) -> None:
        """Subtract `factors` times A from the blocks, in place, to about float32's precision."""
        for i, left in enumerate(factors):
            for j, block in enumerate(blocks):
                if i or j or self._halves is None:
                    _subtract_product(block, left, self._parts[i][j])
                    continue
                high, low = self._halves
                coarse = rounded(left)
                fine = left - coarse
                with tensor_cores():
                    for a, b in ((coarse, high), (coarse, low), (fine, high)):
                        _subtract_product(block, a, b)

    def values(self, blocks: Sequence[Tensor]) -> Tensor:
        """Compute <G, G A> `[]`."""
        negative = [torch.zeros_like(block) for block in blocks]
        self.subtract(blocks, negative)
        return -torch.stack([(g * part).sum() for g, part in zip(blocks, negative)]).sum()


class Dense:
    """The dense strategy of one block, which needs no note of the weights."""

    def __init__(
        self,
        product: ClaimedProduct,
        weights: Memory,
        gradients: Memory,
        origin: list[Tensor] | None,
        stiffness: Tensor,
        scale: Tensor,
    ) -> None:
        """`origin`: W_before in blocks, for a pull with `stiffness` `[g, 1, 1]`."""
        self._product, self._weights, self._gradients = product, weights, gradients
        self.pull, self._stiffness, self._scale = origin, stiffness, scale
        self.noted = stiffness.new_zeros(0)

    def note(self) -> None:
        pass

    def project(self) -> None:
        blocks = self._gradients.load()
        self._product.subtract(self._factors(blocks), blocks)
        self._gradients.store()

    def _factors(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        """Compute H in new memory, because blocks are overwritten while it is read."""
        if self.pull is None:
            return [block.clone() for block in blocks]
        c = -self._stiffness * self._scale
        return [
            torch.addcmul(block, now - before, c)
            for block, now, before in zip(blocks, self._weights.load(), self.pull)
        ]

    def correct(self) -> None:
        raise RuntimeError("the dense strategy projects gradients only")

    def passing(self, once: bool) -> Tensor:
        blocks = self._gradients.load()
        total = torch.stack([block.square().sum() for block in blocks]).sum()
        return torch.stack([total - self._product.values(blocks), total])

    def moved(self, once: bool) -> Tensor:
        return self._stiffness.new_zeros(2)  # it has no note


def make_dense(
    free: FreeSpace,
    weights: Memory,
    gradients: Memory,
    anchor: Tensor | None,
    scale: Tensor,
    way: Way,
) -> Dense:
    """Create the strategy for one block; see `make_factored`."""
    product = ClaimedProduct(free.claimed(), weights.columns, weights.blocks[0])
    stiffness = free.bounded_stiffness(way.stiffest)
    origin = None
    if stiffness is not None and anchor is not None:
        parts = anchor.split([block.shape[-1] for block in weights.blocks], -1)
        origin = [part.contiguous() for part in parts]
    c = scale.new_zeros(1) if stiffness is None else stiffness
    return Dense(product, weights, gradients, origin, c[:, None, None], scale)


def _subtract_product(block: Tensor, left: Tensor, right: Tensor) -> None:
    """Subtract left @ right, in place; a single matrix is faster than a batch of one."""
    if len(block) == 1:
        block[0].addmm_(left[0], right[0], alpha=-1)
    else:
        block.baddbmm_(left, right, alpha=-1)
