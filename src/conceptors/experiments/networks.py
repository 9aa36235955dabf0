"""Networks of the experiments: `[seeds, batch, ...]` in, `[seeds, batch, classes]` out."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.layers import Block, Call, Rows, RowsByBlock, Sample, register

ACTIVATIONS = {"sigmoid": torch.sigmoid, "relu": torch.relu, "tanh": torch.tanh}


class StackedLinear(nn.Module):
    """As many independent linear layers as there are seeds: weight `[seeds, out, in]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.bmm(x, self.weight.mT)
        return torch.baddbmm(self.bias.unsqueeze(1), x, self.weight.mT)


@register(StackedLinear)
class StackedLinearRule:
    """Every seed is a group of its own, so that one shield serves all."""

    def blocks(self, layer: Any) -> list[Block]:
        whole = lambda parameter: parameter  # noqa: E731
        return [Block(view=whole, bias_view=whole, layout="stacked", rows_first=False)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        yield "", Rows(call.args[0])


class StackedMLP(nn.Module):
    """Fully connected networks, one a seed, drawn with that seed's own random numbers.

    Args:
        sizes: neurons of every layer, inputs and outputs included.
        init: "truncated" (normal of sd `scale`, cut at two sd, biases too), or "uniform"
            (± scale / √fan-in, biases zero).
        bias: whether layers have biases; weights are drawn the same without them.
    """

    def __init__(
        self,
        sizes: list[int],
        activation: str,
        init: str,
        scale: float,
        seeds: list[int],
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        generators = [torch.Generator().manual_seed(7_919 + seed) for seed in seeds]
        self.layers = nn.ModuleList()
        for inputs, outputs in pairwise(sizes):
            blocks = torch.stack([_draw(outputs, inputs, init, scale, g) for g in generators])
            weight, shift = blocks[..., :-1].contiguous(), blocks[..., -1].contiguous()
            self.layers.append(StackedLinear(weight, shift if bias else None))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


def _draw(outputs: int, inputs: int, init: str, scale: float, generator: torch.Generator) -> Tensor:
    """[W | b] `[outputs, inputs + 1]`."""
    block = torch.empty(outputs, inputs + 1)
    if init == "truncated":
        block.normal_(generator=generator)
        while bool((wrong := block.abs() > 2).any()):
            block[wrong] = torch.randn(int(wrong.sum()), generator=generator)
        return block * scale
    if init == "uniform":
        block.uniform_(-1, 1, generator=generator)
        block *= scale / math.sqrt(inputs)
        block[:, -1] = 0
        return block
    raise ValueError(f"init must be 'truncated' or 'uniform', got {init!r}")


class AlexNet(nn.Module):
    """The five-layer network of the GPM paper for 32 x 32 images, for one seed."""

    def __init__(self, classes: int, seeds: list[int], dropout: float = 0.0) -> None:
        super().__init__()
        if len(seeds) != 1:
            raise ValueError(f"AlexNet runs one seed at a time, got {len(seeds)}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7_919 + seeds[0])
            self.conv1 = nn.Conv2d(3, 64, 4, bias=False)
            self.conv2 = nn.Conv2d(64, 128, 3, bias=False)
            self.conv3 = nn.Conv2d(128, 256, 2, bias=False)
            self.fc1 = nn.Linear(256 * 4, 2048, bias=False)
            self.fc2 = nn.Linear(2048, 2048, bias=False)
            self.head = nn.Linear(2048, classes, bias=False)
        self.norms = nn.ModuleList(
            [nn.BatchNorm2d(n, track_running_stats=False) for n in (64, 128, 256)]
            + [nn.BatchNorm1d(2048, track_running_stats=False) for _ in range(2)]
        )
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        x = x[0]
        convolutions = (self.conv1, self.conv2, self.conv3)
        for convolution, norm, rate in zip(convolutions, self.norms[:3], (0.4, 0.4, 1.0)):
            x = torch.relu(norm(convolution(x)))
            x = functional.dropout(x, self.dropout * rate, self.training)
            x = functional.max_pool2d(x, 2)
        x = x.flatten(1)
        for layer, norm in zip((self.fc1, self.fc2), self.norms[3:]):
            x = functional.dropout(torch.relu(norm(layer(x))), self.dropout, self.training)
        out: Tensor = self.head(x)
        return out[None]
