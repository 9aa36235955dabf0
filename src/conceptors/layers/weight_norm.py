"""Weight-normalised layers, W = (g / |V|) V: V is the block, and g follows it (`magnitude`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import is_parametrized

from conceptors.layers.base import Block, Call, OwnedRows, Rows, RowsByBlock, Rule, Sample, around

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_DIRECTION = "parametrizations.weight.original1"


def normed(layer: Any) -> tuple[nn.Parameter, nn.Parameter] | None:
    """(g, V) of a layer whose weight is normalised and nothing else; None for others."""
    if not isinstance(layer, _LAYERS) or not is_parametrized(layer, "weight"):
        return None
    parametrizations: Any = layer.parametrizations
    steps = parametrizations.weight
    if len(steps) != 1 or not isinstance(steps[0], _WeightNorm):
        return None
    g, v = steps.original0, steps.original1
    return (g, v) if g.requires_grad else None


def length_of_direction(layer: Any) -> Tensor:
    """|V|, over all dimensions but the one of the norm."""
    steps = layer.parametrizations.weight
    return torch.norm_except_dim(steps.original1, 2, steps[0].dim)


@around(lambda layer: normed(layer) is not None)
class WeightNormRule:
    """Around the rule of a layer; its bias is no column of V, and stands alone."""

    def __init__(self, inner: Rule) -> None:
        self._inner = inner

    def blocks(self, layer: Any) -> list[Block]:
        (block,) = self._inner.blocks(layer)
        layout = f"{block.layout}-direction"
        return [replace(block, weight=_DIRECTION, bias=None, layout=layout)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        steps = layer.parametrizations.weight
        if steps[0].dim == 0:  # every output has a factor of its own, which no row meets
            yield from self._inner.rows(layer, call, sample)
            return
        factor = (steps.original0 / length_of_direction(layer)).expand_as(steps.original1)
        (block,) = self._inner.blocks(layer)
        columns = block.view(factor).flatten(2)[:, :1]  # [g, 1, d]
        for name, rows in self._inner.rows(layer, call, sample):
            assert isinstance(rows, Rows)
            yield name, OwnedRows(rows.values * columns.to(rows.values), rows.weight)
