"""Networks of the experiments, drawn with the random numbers of one seed."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.experiments.scenarios.base import Scenario
from conceptors.readout.features import blurred

ACTIVATIONS = {"sigmoid": torch.sigmoid, "relu": torch.relu, "tanh": torch.tanh}


class MLP(nn.Module):
    """A fully connected network; `sizes` are neurons of every layer, inputs and outputs included.

    `init` is "truncated" (normal with sd `scale`, cut at two sd) or "uniform" (± scale / √fan-in,
    biases zero).
    """

    def __init__(
        self, sizes: list[int], activation: str, init: str, scale: float, seed: int
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        draw = torch.Generator().manual_seed(7_919 + seed)
        for pair, layer in zip(pairwise(sizes), self.layers):
            block = _initial(*pair, init, scale, draw)
            layer.weight.data, layer.bias.data = block[:, :-1].contiguous(), block[:, -1].clone()

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


class AlexNet(nn.Module):
    """The five-layer network of the GPM paper for 32 x 32 images; `width` scales all its layers.

    Norms use the statistics of each batch, in tests too, as that paper's code does.
    """

    def __init__(self, classes: int, seed: int, dropout: float = 0.0, width: int = 64) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7_919 + seed)
            self.conv1 = nn.Conv2d(3, width, 4, bias=False)
            self.conv2 = nn.Conv2d(width, 2 * width, 3, bias=False)
            self.conv3 = nn.Conv2d(2 * width, 4 * width, 2, bias=False)
            self.fc1 = nn.Linear(4 * width * 4, 32 * width, bias=False)
            self.fc2 = nn.Linear(32 * width, 32 * width, bias=False)
            self.head = nn.Linear(32 * width, classes, bias=False)
        kinds = (nn.BatchNorm2d,) * 3 + (nn.BatchNorm1d,) * 2
        self.norms = nn.ModuleList(
            kind(times * width, track_running_stats=False)
            for kind, times in zip(kinds, (1, 2, 4, 32, 32))
        )
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        convolutions = (self.conv1, self.conv2, self.conv3)
        for convolution, norm, rate in zip(convolutions, self.norms[:3], (0.4, 0.4, 1.0)):
            x = torch.relu(norm(convolution(x)))
            x = functional.dropout(x, self.dropout * rate, self.training)
            x = functional.max_pool2d(x, 2)
        x = x.flatten(1)
        for layer, norm in zip((self.fc1, self.fc2), self.norms[3:]):
            x = functional.dropout(torch.relu(norm(layer(x))), self.dropout, self.training)
        out: Tensor = self.head(x)
        return out


def build_network(scenario: Scenario, settings: Any) -> nn.Module:
    """Build the network that settings ask for: fully connected, or AlexNet for colour images."""
    s, image = settings, scenario.image
    if len(scenario.inputs) == 3:
        return AlexNet(scenario.classes, scenario.seed, s.dropout)
    for name in ("mirror", "shift", *(("smooth", "local") if image is None else ())):
        if getattr(s, name):
            raise ValueError(
                f"{name} does not apply to the inputs of {scenario.name}; leave it out"
            )
    sizes = [math.prod(scenario.inputs), *s.sizes(), scenario.classes]
    network = MLP(sizes, s.activation, s.init, s.scale, scenario.seed)
    weight = next(network.parameters())
    if image is not None:
        if s.smooth:
            weight.data = blurred(weight.data, image, s.smooth)
        if s.local:
            weight.data = _windowed(weight.data, image, s.local, scenario.seed)
    return network


def _initial(inputs: int, outputs: int, init: str, scale: float, draw: torch.Generator) -> Tensor:
    """Weights and biases [W | b] `[outputs, inputs + 1]` of a layer."""
    block = torch.empty(outputs, inputs + 1)
    if init == "uniform":
        block.uniform_(-1, 1, generator=draw)[:, -1] = 0
        return block * (scale / math.sqrt(inputs))
    block.normal_(generator=draw)
    while bool((is_cut := block.abs() > 2).any()):
        block[is_cut] = torch.randn(int(is_cut.sum()), generator=draw)
    return block * scale


def _windowed(weight: Tensor, image: tuple[int, int, int], width: float, seed: int) -> Tensor:
    """Multiply each neuron's weights by a Gaussian window, at the same mean square.

    Windows have an sd of `width` pixels and random centres, a seventh of the image or more away
    from its borders.
    """
    generator = torch.Generator().manual_seed(32_452_843 + seed)
    profiles = []
    for length in image[1:]:
        centre = length / 7 + 5 / 7 * length * torch.rand(len(weight), 1, generator=generator)
        profiles.append(torch.exp(-((torch.arange(length) - centre) ** 2) / (2 * width**2)))
    window = profiles[0][:, None, :, None] * profiles[1][:, None, None, :]
    local = weight * window.expand(-1, image[0], -1, -1).flatten(1)
    size, new_size = (w.square().mean(1, keepdim=True) for w in (weight, local))
    return local * (size / new_size).sqrt()
