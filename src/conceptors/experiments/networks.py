"""Networks of the experiments: `[seeds, batch, ...]` in, `[seeds, batch, classes]` out."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.estimators.lift import blurred
from conceptors.experiments.stacked import (
    StackedBatchNorm,
    StackedConv2d,
    StackedLinear,
    by_channel,
    by_seed,
)

ACTIVATIONS = {"sigmoid": torch.sigmoid, "relu": torch.relu, "tanh": torch.tanh}


class StackedMLP(nn.Module):
    """Fully connected networks, one a seed, drawn with that seed's own random numbers.

    Args:
        sizes: neurons of every layer, inputs and outputs included.
        init: "truncated" (normal of sd `scale`, cut at two sd, biases too), "uniform"
            (± scale / √fan-in, biases zero), or "xavier" (± scale √(6 / (fan-in + fan-out)),
            biases among the inputs, and drawn as these).
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

    @torch.no_grad()
    def smooth(self, image: tuple[int, int, int], sigma: float) -> None:
        """Blur what every neuron of the first layer looks for, at the same mean square."""
        first = self.layers[0]
        assert isinstance(first, StackedLinear)
        weight = first.weight
        weight.copy_(blurred(weight.flatten(0, 1), image, sigma).view_as(weight))

    @torch.no_grad()
    def look_closely(self, image: tuple[int, int, int], width: float, seeds: list[int]) -> None:
        """Give every neuron of the first layer a place to begin with, at the same mean square.

        Weights are multiplied by a Gaussian of sd `width` pixels around a place that is drawn
        from the middle of the image, a seventh of it away from its borders.
        """
        first = self.layers[0]
        assert isinstance(first, StackedLinear)
        for weight, seed in zip(first.weight, seeds):
            window = _windows(len(weight), image, width, seed).to(weight)
            size = weight.square().mean(1, keepdim=True)
            seen = weight * window
            weight.copy_(seen * (size / seen.square().mean(1, keepdim=True)).sqrt())

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


def _windows(count: int, image: tuple[int, int, int], width: float, seed: int) -> Tensor:
    """Gaussians around places of their own `[count, c · h · w]`."""
    channels, high, wide = image
    draw = torch.Generator().manual_seed(32_452_843 + seed)
    near = []
    for length in (high, wide):
        place = length / 7 + 5 / 7 * length * torch.rand(count, 1, generator=draw)
        near.append(torch.exp(-((torch.arange(length) - place) ** 2) / (2 * width**2)))
    window = near[0][:, None, :, None] * near[1][:, None, None, :]  # [count, 1, h, w]
    return window.expand(-1, channels, -1, -1).flatten(1)


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
    if init == "xavier":
        block.uniform_(-1, 1, generator=generator)
        return block * (scale * math.sqrt(6 / (inputs + 1 + outputs)))
    raise ValueError(f"init must be 'truncated', 'uniform' or 'xavier', got {init!r}")


class AlexNet(nn.Module):
    """The five-layer networks of the GPM paper for 32 x 32 images, one a seed.

    Norms use the statistics of the batch, as in that paper's code, unless they are told to hold
    others: what is said of a test image depends on those it is tested with. Dropout is drawn for
    all seeds together.
    """

    def __init__(
        self, classes: int, seeds: list[int], dropout: float = 0.0, width: int = 64
    ) -> None:
        """`width`: channels of the first layer, with which all others grow."""
        super().__init__()
        drawn = [_alexnet_weights(classes, seed, width) for seed in seeds]
        weights = {name: torch.stack([own[name] for own in drawn]) for name in drawn[0]}
        self.conv1, self.conv2, self.conv3 = (
            StackedConv2d(weights[name]) for name in ("conv1", "conv2", "conv3")
        )
        self.fc1, self.fc2, self.head = (
            StackedLinear(weights[name]) for name in ("fc1", "fc2", "head")
        )
        self.norms = nn.ModuleList(
            [StackedBatchNorm(len(seeds), times * width) for times in (1, 2, 4, 32, 32)]
        )
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        convolutions = (self.conv1, self.conv2, self.conv3)
        for convolution, norm, rate in zip(convolutions, self.norms[:3], (0.4, 0.4, 1.0)):
            x = torch.relu(norm(convolution(x)))
            x = functional.dropout(x, self.dropout * rate, self.training)
            x = by_seed(functional.max_pool2d(by_channel(x), 2), len(x))
        x = x.flatten(2)
        for layer, norm in zip((self.fc1, self.fc2), self.norms[3:]):
            x = functional.dropout(torch.relu(norm(layer(x))), self.dropout, self.training)
        out: Tensor = self.head(x)
        return out


def _alexnet_weights(classes: int, seed: int, width: int) -> dict[str, Tensor]:
    """One seed's initial weights, by the layers' names."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7_919 + seed)
        layers: dict[str, nn.Conv2d | nn.Linear] = {
            "conv1": nn.Conv2d(3, width, 4, bias=False),
            "conv2": nn.Conv2d(width, 2 * width, 3, bias=False),
            "conv3": nn.Conv2d(2 * width, 4 * width, 2, bias=False),
            "fc1": nn.Linear(4 * width * 4, 32 * width, bias=False),
            "fc2": nn.Linear(32 * width, 32 * width, bias=False),
            "head": nn.Linear(32 * width, classes, bias=False),
        }
    return {name: layer.weight.detach() for name, layer in layers.items()}
