"""Parameters and gradients of a site as matrices `[g, out, k]`, in place wherever memory allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from conceptors.shield.blocks import WeightBlock, is_sharded

Get = Callable[[nn.Parameter], Tensor]
Put = Callable[[nn.Parameter, Tensor], object]


class Memory:
    """Tensors of the shapes of some parameters, side by side as blocks `[g, out, k]`.

    Attributes:
        blocks: one for each parameter, or a single copy of all.
        columns: which columns of the site each block has, in the order of its memory.
    """

    is_copy = False

    def __init__(self, blocks: list[Tensor], columns: list[Tensor]) -> None:
        self.blocks, self.columns = blocks, columns

    def load(self) -> list[Tensor]:
        """The blocks, with the numbers of now."""
        return self.blocks

    def store(self) -> None:
        """Put copies back where they came from."""


class Copied(Memory):
    """Tensors that have no such view in place: `load` copies them together, `store` back."""

    is_copy = True

    def __init__(self, site: WeightBlock, active: list[nn.Parameter], get: Get, put: Put) -> None:
        self._site, self._active, self._get, self._put = site, active, get, put
        block = self._now().clone()
        super().__init__([block], [torch.arange(block.shape[-1])])

    def load(self) -> list[Tensor]:
        self.blocks[0].copy_(self._now())
        return self.blocks

    def store(self) -> None:
        taken = 0
        for parameter in self._active:
            whole = self._get(parameter)
            (view,) = self._site.views({id(parameter): whole}, [parameter])
            size = view.shape[2:].numel()
            view.copy_(self.blocks[0][..., taken : taken + size].reshape(view.shape))
            taken += size
            self._put(parameter, whole)

    def _now(self) -> Tensor:
        return self._site.matrix(self._active, {id(p): self._get(p) for p in self._active})


def memory_of(
    site: WeightBlock,
    active: list[nn.Parameter],
    get: Get,
    put: Put = lambda parameter, tensor: None,
) -> Memory:
    """Memory of some parameters of a site.

    `get` gives a parameter's tensor; `put` takes one that `get` had to make.
    """
    made = any(is_sharded(p.data) for p in active) and not site.block.rows_first
    views = site.views({id(p): get(p) for p in active}, active)
    found = [in_place(view) for view in views]
    if made or None in found:
        return Copied(site, active, get, put)
    blocks, columns, start = [], [], 0
    for block, own in filter(None, found):
        blocks.append(block)
        columns.append(own + start)
        start += block.shape[-1]
    return Memory(blocks, columns)


def both(site: WeightBlock, active: list[nn.Parameter], gradient: Get) -> tuple[Memory, Memory]:
    """Weights and gradients of a site, with their columns in one order."""
    weights = memory_of(site, active, site.read, site.write)
    gradients = memory_of(site, active, gradient)
    alike = len(weights.columns) == len(gradients.columns)
    if not alike or any(map(differ, weights.columns, gradients.columns)):
        weights = Copied(site, active, site.read, site.write)
        gradients = Copied(site, active, gradient, lambda parameter, tensor: None)
    return weights, gradients


def differ(one: Tensor, other: Tensor) -> bool:
    return not torch.equal(one, other)


def in_place(view: Tensor) -> tuple[Tensor, Tensor] | None:
    """A view `[g, out, ...]` as matrices `[g, out, k]` of the same memory, in memory order.

    Also tells which column of the block each of the k is; None if no such view exists.
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
    """[W | b ...] `[g, out, d]`."""
    return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks), -1)
