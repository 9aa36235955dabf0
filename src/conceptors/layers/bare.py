"""Bare parameters, which belong to no layer's matrix: class tokens, positions, masks, scales.

A task that uses a bare parameter protects all of it, whatever it is used for.
"""

from typing import Any

from torch import Tensor, nn

from conceptors.layers.base import Block, Call, RowsByBlock, Sample

_LAYOUT = "bare"


def stands_alone(parameter: Tensor) -> bool:
    """Whether a parameter can be bare by its shape: a vector, or a tensor of batch size 1.

    Other shapes may be matrices that multiply activations; fixed as a whole, they cannot learn.
    """
    return sum(size > 1 for size in parameter.shape) <= 1 or parameter.shape[0] == 1


def is_bare(block: Block) -> bool:
    """Whether a block is a bare parameter."""
    return block.layout == _LAYOUT


class BareRule:
    """The rule of one bare parameter of a module: one column, without rows."""

    def __init__(self, name: str) -> None:
        self._name = name

    def blocks(self, layer: nn.Module) -> list[Block]:
        def view(tensor: Tensor) -> Tensor:
            return tensor.flatten()[None, :, None]

        return [Block(self._name, None, view=view, layout=_LAYOUT, rows_first=False)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        yield from ()
