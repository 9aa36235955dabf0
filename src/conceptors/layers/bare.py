"""Bare parameters, which belong to no layer: class tokens, positions, masks, channel scales.

A parameter that is added to activations, or concatenated with them, multiplies the constant 1. All
of it is protected once a task has used it. A vector that multiplies activations is treated like the
weight of a norm layer. `shield.remember.bare` observes which of the two a parameter is.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from conceptors.layers.base import Block, Call, RowsByBlock, Sample
from conceptors.layers.norm import by_channel

_SCALE, _CONSTANT = "scale", "constant"


def stands_alone(parameter: Tensor) -> bool:
    """Whether a parameter can be bare by its shape: a vector, or a tensor of batch size 1.

    Other shapes may be matrices that multiply activations; fixed as a whole, they cannot learn.
    """
    return is_vector(parameter) or parameter.shape[0] == 1


def is_vector(parameter: Tensor) -> bool:
    """Whether a tensor has at most one dimension larger than 1."""
    return sum(size > 1 for size in parameter.shape) <= 1


def is_bare(block: Block) -> bool:
    """Whether a block is a bare parameter."""
    return block.layout in (_SCALE, _CONSTANT)


class BareRule:
    """The rule of one bare parameter of a module; a call is a product with the parameter."""

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
