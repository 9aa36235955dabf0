"""View parameters and gradients of a block as matrices `[g, out, k]`, in place if possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from conceptors.shield.blocks import WeightBlock, is_sharded

Get = Callable[[nn.Parameter], Tensor]
Put = Callable[[nn.Parameter, Tensor], object]


class Memory:
    """Tensors of the shapes of some parameters, as matrices `[g, out, k]`.

    Attributes:
        blocks: one matrix per parameter, or a single copy of all.
        columns: the columns of each matrix in the whole block, in memory order.
    """

    is_copy = False

    def __init__(self, blocks: list[Tensor], columns: list[Tensor]) -> None:
        self.blocks, self.columns = blocks, columns

    def load(self) -> list[Tensor]:
        """Return the matrices with their current values."""
        return self.blocks

    def store(self) -> None:
        """Write copies back to their tensors."""


class Copied(Memory):
    """Tensors without such views: `load` copies them into one matrix, `store` writes them back."""

    is_copy = True

    def __init__(self, site: WeightBlock, active: list[nn.Parameter], get: Get, put: Put) -> None:
        self._site, self._active, self._get, self._put = site, active, get, put
        block = self._now().clone()
        super().__init__([block], [torch.arange(block.shape[-1])])

    def load(self) -> list[Tensor]:
        self.blocks[0].copy_(self._now())
        return self.blocks

    def store(self) -> None:
        start = 0
        for parameter in self._active:
            tensor = self._get(parameter)
            (view,) = self._site.views({id(parameter): tensor}, [parameter])
            size = view.shape[2:].numel()
            view.copy_(self.blocks[0][..., start : start + size].reshape(view.shape))
            start += size
            self._put(parameter, tensor)

    def _now(self) -> Tensor:
        return self._site.matrix(self._active, {id(p): self._get(p) for p in self._active})


def memory_of(
    site: WeightBlock,
    active: list[nn.Parameter],
    get: Get,
    put: Put = lambda parameter, tensor: None,
) -> Memory:
    """View these parameters of a block as matrices, or copy them.

    `get` returns a parameter's tensor; `put` stores a tensor that `get` had to create.
    """
    is_created = any(is_sharded(p.data) for p in active) and not site.block.rows_first
    views = site.views({id(p): get(p) for p in active}, active)
    matrices = [in_place(view) for view in views]
    if is_created or None in matrices:
        return Copied(site, active, get, put)
    blocks, columns, start = [], [], 0
    for block, order in filter(None, matrices):
        blocks.append(block)
        columns.append(order + start)
        start += block.shape[-1]
    return Memory(blocks, columns)


def both(site: WeightBlock, active: list[nn.Parameter], gradient: Get) -> tuple[Memory, Memory]:
    """View the weights and gradients of a block with their columns in the same order."""
    weights = memory_of(site, active, site.read, site.write)
    gradients = memory_of(site, active, gradient)
    is_paired = len(weights.columns) == len(gradients.columns)
    if not is_paired or not all(map(torch.equal, weights.columns, gradients.columns)):
        weights = Copied(site, active, site.read, site.write)
        gradients = Copied(site, active, gradient, lambda parameter, tensor: None)
    return weights, gradients


def in_place(view: Tensor) -> tuple[Tensor, Tensor] | None:
    """View `[g, out, ...]` as a matrix `[g, out, k]` of the same memory, in memory order.

    Also returns the column of the block of each of the k; None if there is no such view.
    """
    inner = view.shape[2:]
    order = sorted(range(len(inner)), key=lambda axis: -view.stride(2 + axis))
    permuted = view.permute(0, 1, *(2 + axis for axis in order))
    try:
        block = permuted.view(*view.shape[:2], inner.numel())
    except RuntimeError:
        return None
    columns = torch.arange(inner.numel()).reshape(inner).permute(order).flatten()
    return block, columns


def side_by_side(blocks: Sequence[Tensor]) -> Tensor:
    """Concatenate matrices to [W | b ...] `[g, out, d]`."""
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), -1)
