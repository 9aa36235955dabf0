"""Project with A = U diag(s) Uᵀ by thin products with U and Uᵀ.

The note of the weights W is only W U `[g, out, r]`. It is computed once per task and follows the
corrections from step to step. Rounding errors in claimed space are therefore removed at the next
step, and do not add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal.precision import full, tensor_cores
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.memory import Memory
from conceptors.shield.step.numbers import sharp_product, split_bf16, split_tf32, widens
from conceptors.shield.step.strategy import Pull, Way, claimed

_TILE = 16
_WIDE, _LARGE = 96, 1e8  # splitting numbers pays from this rank and number of operations


class Directions:
    """U, split by the columns of blocks `[g, out, k]`, in memory order."""

    def __init__(
        self, vectors: Tensor, columns: Sequence[Tensor], like: Tensor, rough: bool = False
    ) -> None:
        """`rough`: gradients may be projected roughly, because steps are projected too."""
        self.rough = rough
        self.parts = [_rows(vectors, at) for at in columns]  # [g, k, r]
        self.dtype = like.dtype
        self._halves = self._thirds = None
        if pays_to_split(like, vectors.shape[-1]):
            if len(like) == 1 and like.dtype == torch.bfloat16 and widens(like.device):
                self._thirds = split_bf16(self.parts[0][0])
            else:
                self._halves = split_tf32(self.parts[0])

    def along(self, blocks: Sequence[Tensor], rough: bool = False) -> Tensor:
        """Compute [W | b ...] U `[g, out, r]` to float32's precision; if `rough`, to TF32's."""
        first, part = blocks[0], self.parts[0]
        product: Tensor
        if rough and first.is_cuda and first.dtype == torch.float32:
            with tensor_cores():
                product = _product(first, part)
        elif self._thirds is not None and first.dtype == torch.bfloat16:
            wide: Any = torch.mm
            thrice = wide(first[0], self._thirds, out_dtype=torch.float32)
            product = thrice.unflatten(-1, (3, -1)).sum(-2)[None]
        elif self._halves is not None:
            product = sharp_product(first, self._halves)
        else:
            product = _product(full(first), part)
        for block, other in zip(blocks[1:], self.parts[1:]):
            product = _add_product(product, full(block), other)
        return product

    def add(self, blocks: Sequence[Tensor], amount: Tensor) -> None:
        """Add amount Uᵀ to the blocks, in place.

        On a GPU, factors are rounded to TF32 if steps are projected: the next step removes the
        rounding errors.
        """
        with tensor_cores() if amount.is_cuda and self.rough else nullcontext():
            for block, part in zip(blocks, self.parts):
                if block.dtype == amount.dtype:
                    _add_product(block, amount, part.mT)
                else:
                    block.add_(_product(amount.to(block.dtype), part.mT.to(block.dtype)))


class Factored:
    """The factored strategy of one block, with the note W U of its weights."""

    def __init__(
        self,
        directions: Directions,
        weights: Memory,
        gradients: Memory,
        gain: Tensor,
        pull: Pull | None,
        noted: Tensor,
    ) -> None:
        self.directions, self.weights, self.gradients = directions, weights, gradients
        self.gain, self.pull, self.noted = gain, pull, noted

    def note(self) -> None:
        self.noted.copy_(self.directions.along(self.weights.load()))

    def resume(self, noted: Tensor) -> bool:
        """Restore a saved note, which contains earlier rounding, if it matches the weights."""
        if noted.shape != self.noted.shape:
            return False
        if not noted.numel():  # this process has no rows of a sharded weight
            return True
        kind = self.weights.blocks[0].dtype
        size = torch.finfo(kind).eps * (16 if kind in (torch.float16, torch.bfloat16) else 1e3)
        self.note()
        noted = noted.to(self.noted)
        if not float((noted - self.noted).abs().amax()) <= size * float(self.noted.abs().amax()):
            return False
        self.noted.copy_(noted)
        return True

    def project(self) -> None:
        rough = self.directions.rough
        amount = self.directions.along(self.gradients.load(), rough).mul_(-self.gain)
        if self.pull is not None:
            amount += self.pull.of(self.noted)
        self.directions.add(self.gradients.blocks, amount)
        self.gradients.store()

    def correct(self) -> None:
        moved = self.directions.along(self.weights.load()).sub_(self.noted)
        self.noted.addcmul_(moved, 1 - self.gain)
        self.directions.add(self.weights.blocks, moved.mul_(-self.gain))
        self.weights.store()

    def passing(self, once: bool) -> Tensor:
        blocks = self.gradients.load()
        total = torch.stack([full(block).square().sum() for block in blocks]).sum()
        removed = (self.directions.along(blocks).square_() * claimed(self.gain, once)).sum()
        return torch.stack([total - removed, total])

    def moved(self, once: bool) -> Tensor:
        added = self.directions.along(self.weights.load()) - self.noted
        values = claimed(self.gain, once)
        return torch.stack([(x.square() * values).sum() for x in (added, self.noted)])


def make_factored(
    free: FreeSpace,
    weights: Memory,
    gradients: Memory,
    anchor: Tensor | None,
    scale: Tensor,
    way: Way,
) -> Factored:
    """Create the strategy for one block.

    Args:
        anchor: W_before `[g, out, d]`, with its columns in the weights' memory order.
        scale: the factor of a gradient scaler.
        way: how steps are projected.
    """
    first = weights.blocks[0]
    padding = -free.rank % _TILE if first.is_cuda else 0  # odd sizes are slow on a GPU
    vectors = functional.pad(free.vectors, (0, padding)) if padding else free.vectors
    directions = Directions(vectors, weights.columns, first, rough=way.corrects)
    noted = torch.zeros(
        *first.shape[:2], vectors.shape[-1], dtype=vectors.dtype, device=vectors.device
    )
    pull, weight = None, free.pull(way.once, way.stiffest)
    if weight is not None and anchor is not None:
        origin = directions.along(anchor.split([block.shape[-1] for block in weights.blocks], -1))
        pull = Pull(functional.pad(weight, (0, padding)), origin, scale)
    gain = functional.pad(free.gain(way.once), (0, padding))
    return Factored(directions, weights, gradients, gain, pull, noted)


def pays_to_split(block: Tensor, rank: int) -> bool:
    """Whether splitting numbers for three products on tensor cores beats a float32 product."""
    work = 2.0 * block.numel() * rank
    return block.is_cuda and block.dtype != torch.float64 and rank >= _WIDE and work >= _LARGE


def _rows(vectors: Tensor, at: Tensor) -> Tensor:
    """Select rows of U; consecutive rows without an index."""
    first, count = int(at[0]), len(at)
    if torch.equal(at, torch.arange(first, first + count)):
        return vectors[:, first : first + count].contiguous()
    return vectors[:, at.to(vectors.device)].contiguous()


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Compute left @ right; a single matrix is faster than a batch of one."""
    return (left[0] @ right[0])[None] if len(left) == 1 else left @ right


def _add_product(added: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add left @ right, in place."""
    if len(added) == 1:
        added[0].addmm_(left[0], right[0])
    else:
        added.baddbmm_(left, right)
    return added
