"""Layers of as many networks as there are seeds, which do not meet.

Inputs, outputs and parameters begin with a dimension of seeds, so that a GPU has one large piece of
work instead of many small ones. For a shield every seed is a group of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.layers import Block, Call, Rows, RowsByBlock, Sample, register
from conceptors.layers.conv import cut, patches
from conceptors.layers.norm import by_channel as rows_by_channel
from conceptors.layers.norm import channels


def by_channel(x: Tensor) -> Tensor:
    """`[seeds, batch, c, ...]` as `[batch, seeds * c, ...]`, for torch's own layers."""
    found: Tensor = x.transpose(0, 1).flatten(1, 2)
    return found


def by_seed(x: Tensor, seeds: int) -> Tensor:
    """The way back. What went through torch's layers like this is not copied on either way."""
    found: Tensor = x.unflatten(1, (seeds, -1)).transpose(0, 1)
    return found


class Stacked(nn.Module):
    """A layer whose parameters are `[seeds, ...]`."""


class StackedLinear(Stacked):
    """Linear layers: weight `[seeds, out, in]`, inputs `[seeds, batch, in]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        """W xᵀ, seen the other way round.

        So autograd makes the weight's gradient in the order of its memory; that of x Wᵀ it makes
        transposed, and copies it, which takes a third of a step of wide layers on a GPU.
        """
        if self.bias is None:
            return (self.weight @ x.mT).mT
        return torch.baddbmm(self.bias.unsqueeze(2), self.weight, x.mT).mT


@register(StackedLinear)
class StackedLinearRule:
    def blocks(self, layer: Any) -> list[Block]:
        return [_whole(layer, is_product=True)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        yield "", Rows(call.args[0])


class StackedConv2d(Stacked):
    """Convolutions: weight `[seeds, out, c, k, k]`, inputs `[seeds, batch, c, h, w]`."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        found = functional.conv2d(by_channel(x), weight.flatten(0, 1), groups=len(weight))
        return by_seed(found, len(weight))


@register(StackedConv2d)
class StackedConv2dRule:
    """Rows are patches, as those of Conv2d."""

    def blocks(self, layer: Any) -> list[Block]:
        return [_whole(layer, bias=None)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        seeds, *_, high, wide = layer.weight.shape
        windows = cut(by_channel(call.args[0]), (high, wide), (1, 1), (1, 1))
        for rows in patches(windows, seeds, 2, sample):
            yield "", rows


def _whole(layer: Any, **more: Any) -> Block:
    """Parameters that are `[g, out, ...]` already."""
    whole = lambda parameter: parameter  # noqa: E731
    seeds = len(layer.weight)
    return Block(
        view=whole, bias_view=whole, layout="stacked", rows_first=False, networks=seeds, **more
    )


class StackedBatchNorm(Stacked):
    """Batch normalisation of inputs `[seeds, batch, c, ...]`, weight and bias `[seeds, c]`.

    Statistics are those of each seed's batch, in evaluation too.

    Attributes:
        held: mean and variance `[seeds, c]` to use instead.
    """

    eps = 1e-5

    def __init__(self, seeds: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(seeds, channels))
        self.bias = nn.Parameter(torch.zeros(seeds, channels))
        self.held: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        return by_seed(self.normalised(x, self.weight.flatten(), self.bias.flatten()), len(x))

    def normalised(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """`[batch, seeds * c, ...]`."""
        mean, var = (None, None) if self.held is None else (held.flatten() for held in self.held)
        return functional.batch_norm(
            by_channel(x), mean, var, weight, bias, self.held is None, 0.0, self.eps
        )

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance `[seeds, c]` of a batch."""
        samples = x.transpose(1, 2).flatten(2)
        return samples.mean(2), samples.var(2, correction=0)


@register(StackedBatchNorm)
class StackedBatchNormRule:
    """Every channel of every seed is a group, as those of BatchNorm."""

    def blocks(self, layer: Any) -> list[Block]:
        return [replace(channels(), networks=len(layer.weight))]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        normalised = layer.normalised(call.args[0], None, None)
        yield "", rows_by_channel(*sample.unrounded(normalised.movedim(1, -1)))
