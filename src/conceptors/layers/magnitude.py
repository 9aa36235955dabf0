"""Weights that are a magnitude times a direction: W = (g / |V|) V, as in weight norm and DoRA.

V is protected like any weight as long as g / |V| is constant. Once a task is remembered, g follows
|V|. V learns in its free space, and the outputs on remembered data keep their scale.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized

from conceptors.layers.base import Block, Call, Rows, RowsByBlock, Rule, Sample, around
from conceptors.layers.dora import adapters, length_of_adapted

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_DIRECTION = "parametrizations.weight.original1"


def normed(layer: Any) -> tuple[nn.Parameter, nn.Parameter] | None:
    """Return (g, V) of a layer whose only parametrization is weight norm; None for others."""
    if not isinstance(layer, _LAYERS) or not is_parametrized(layer, "weight"):
        return None
    parametrizations: Any = layer.parametrizations
    steps = parametrizations.weight
    if len(steps) != 1 or not isinstance(steps[0], _WeightNorm):
        return None
    g, v = steps.original0, steps.original1
    return (g, v) if g.requires_grad else None


def length_of_direction(layer: Any) -> Tensor:
    """Compute |V| over all dimensions but that of the norm."""
    steps = layer.parametrizations.weight
    return torch.norm_except_dim(steps.original1, 2, steps[0].dim)


@dataclass(frozen=True)
class Magnitude:
    """A parameter g, the parameters of V, and a function that computes |V| in g's shape."""

    parameter: nn.Parameter
    directions: tuple[nn.Parameter, ...]
    length: Callable[[], Tensor]

    @torch.no_grad()
    def ratio(self) -> Tensor:
        """Compute g / |V|."""
        return self.parameter.data / self.length().to(self.parameter.data)

    @torch.no_grad()
    def follow(self, ratio: Tensor) -> None:
        """Set g so that g / |V| equals this ratio."""
        self.parameter.data.copy_(ratio * self.length().to(ratio))


def magnitudes(model: nn.Module) -> Iterator[Magnitude]:
    """Yield the trainable magnitudes of a model."""
    for layer in model.modules():
        if (parts := normed(layer)) is not None:
            yield Magnitude(parts[0], parts[1:], partial(length_of_direction, layer))
        for adapter in adapters(layer):
            directions, length = (adapter.down.weight, adapter.up.weight), length_of_adapted
            yield Magnitude(adapter.magnitude.weight, directions, partial(length, adapter))


@around(lambda layer: normed(layer) is not None)
class WeightNormRule:
    """Wraps the rule of a layer. The bias is not a column of V; it is a bare parameter."""

    def __init__(self, inner: Rule) -> None:
        self._inner = inner

    def blocks(self, layer: Any) -> list[Block]:
        (block,) = self._inner.blocks(layer)
        layout = f"{block.layout}-direction"
        return [replace(block, weight=_DIRECTION, bias=None, layout=layout)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        steps = layer.parametrizations.weight
        if steps[0].dim == 0:  # the factors scale outputs, not rows
            yield from self._inner.rows(layer, call, sample)
            return
        factor = (steps.original0 / length_of_direction(layer)).expand_as(steps.original1)
        (block,) = self._inner.blocks(layer)
        columns = block.view(factor).flatten(2)[:, :1]  # [g, 1, d]
        for name, rows in self._inner.rows(layer, call, sample):
            assert isinstance(rows, Rows)
            yield name, Rows(rows.values * columns.to(rows.values), rows.weight)
