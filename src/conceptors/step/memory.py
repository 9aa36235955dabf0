"""Parameters and gradients of a site as matrices `[g, out, k]`, in place wherever memory allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from conceptors.sites import Site, is_sharded


class Memory:
    """Tensors of the shapes of some parameters, side by side as blocks `[g, out, k]`.

    Where no view in place exists, `load` copies them together and `store` puts them back.

    Attributes:
        blocks: one for each parameter, or a single copy of all.
        columns: which columns of the site each block has, in the order of its memory.
    """

    def __init__(
        self,
        site: Site,
        active: list[nn.Parameter],
        get: Callable[[nn.Parameter], Tensor],
        put: Callable[[nn.Parameter, Tensor], object] = lambda parameter, tensor: None,
        copied: bool = False,
    ) -> None:
        """`get` gives a parameter's tensor; `put` takes one that `get` had to make."""
        self._site, self._active, self._get, self._put = site, active, get, put
        views = site.views({id(p): get(p) for p in active}, active)
        found = [in_place(view) for view in views]
        made = any(is_sharded(p.data) for p in active) and not site.block.rows_first
        self.is_copy = made or copied or not all(found)
        if self.is_copy:
            self.blocks = [site.matrix(active, {id(p): get(p) for p in active}).clone()]
            self.columns = [torch.arange(self.blocks[0].shape[-1])]
            return
        self.blocks, self.columns, start = [], [], 0
        for block, columns in filter(None, found):
            self.blocks.append(block)
            self.columns.append(columns + start)
            start += block.shape[-1]

    def load(self) -> list[Tensor]:
        """The blocks, with the numbers of now."""
        if self.is_copy:
            now = {id(p): self._get(p) for p in self._active}
            self.blocks[0].copy_(self._site.matrix(self._active, now))
        return self.blocks

    def store(self) -> None:
        """Put copies back where they came from."""
        if not self.is_copy:
            return
        taken = 0
        for parameter in self._active:
            whole = self._get(parameter)
            (view,) = self._site.views({id(parameter): whole}, [parameter])
            size = view.shape[2:].numel()
            view.copy_(self.blocks[0][..., taken : taken + size].reshape(view.shape))
            taken += size
            self._put(parameter, whole)


def both(
    site: Site, active: list[nn.Parameter], gradient: Callable[[nn.Parameter], Tensor]
) -> tuple[Memory, Memory]:
    """Weights and gradients of a site, with their columns in one order."""
    weights, gradients = Memory(site, active, site.read, site.write), Memory(site, active, gradient)
    alike = len(weights.columns) == len(gradients.columns)
    if not alike or any(map(differ, weights.columns, gradients.columns)):
        weights = Memory(site, active, site.read, site.write, copied=True)
        gradients = Memory(site, active, gradient, copied=True)
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
