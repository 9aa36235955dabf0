"""Parameters that stand beside layers: class tokens, positions, masks; scales of channels.

A parameter that is added, or put beside activations, multiplies the constant 1: once a task has
used it, all of it is claimed. A vector that multiplies activations is treated like the weight of a
norm layer. `shield.remember.bare` observes which of the two it is.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from conceptors.layers.base import Block, Call, RowsByBlock, Sample
from conceptors.layers.norm import by_channel

_SCALE, _CONSTANT = "scale", "constant"


def stands_alone(parameter: Tensor) -> bool:
    """Whether a parameter has the shape of one: a vector, or one thing for all samples.

    Others may be matrices that multiply activations, which would hardly learn if they were held.
    """
    return is_vector(parameter) or parameter.shape[0] == 1


def is_vector(parameter: Tensor) -> bool:
    """Whether it has one number per channel, wherever channels are."""
    return sum(size > 1 for size in parameter.shape) <= 1


def is_bare(block: Block) -> bool:
    """Whether a block is a parameter that stands alone."""
    return block.layout in (_SCALE, _CONSTANT)


class BareRule:
    """Of one parameter of a module; what is called is the function that multiplies with it."""

    def __init__(self, name: str, parameter: Tensor) -> None:
        self._name = name
        self.is_vector = is_vector(parameter)

    def blocks(self, layer: nn.Module) -> list[Block]:
        if self.is_vector:
            return [_block(self._name, lambda vector: vector.flatten()[:, None, None], _SCALE)]
        return [_block(self._name, lambda tensor: tensor.flatten()[None, :, None], _CONSTANT)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        yield "", by_channel(*sample.unrounded(call.args[0]))


def _block(name: str, view: Any, layout: str) -> Block:
    return Block(name, None, view=view, layout=layout, rows_first=False)
