"""Networks of the experiments, drawn with the random numbers of one seed."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from conceptors.experiments.scenarios import Scenario

ACTIVATIONS = {"sigmoid": torch.sigmoid, "relu": torch.relu, "tanh": torch.tanh}
Image = tuple[int, int, int]  # channels, height, width


class MLP(nn.Module):
    """A fully connected network.

    Args:
        sizes: neurons of every layer, inputs and outputs included.
        init: "truncated" (normal of sd `scale`, cut at two sd, biases too) or "uniform"
            (± scale / √fan-in, biases zero).
    """

    def __init__(
        self, sizes: list[int], activation: str, init: str, scale: float, seed: int
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(sizes))
        generator = torch.Generator().manual_seed(7_919 + seed)
        draw = {"truncated": _truncated_normal, "uniform": _uniform}[init]
        with torch.no_grad():
            for (inputs, outputs), layer in zip(pairwise(sizes), self.layers):
                block = draw(outputs, inputs, scale, generator)
                layer.weight.copy_(block[:, :-1])
                layer.bias.copy_(block[:, -1])

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


class AlexNet(nn.Module):
    """The five-layer network of the GPM paper for 32 x 32 images.

    Norms use the statistics of each batch, in tests too, as that paper's code does. With
    `fix_statistics` they use fixed ones from then on.
    """

    def __init__(self, classes: int, seed: int, dropout: float = 0.0, width: int = 64) -> None:
        """`width`: channels of the first layer; all others scale with it."""
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

    def train(self, mode: bool = True) -> AlexNet:
        """Norms with fixed statistics stay in evaluation mode, where torch uses these."""
        super().train(mode)
        for norm in self.norms:
            norm.train(mode and norm.running_mean is None)
        return self

    @staticmethod
    def fix_statistics(norm: nn.Module, mean: Tensor, variance: Tensor) -> None:
        """Let a norm use this mean and variance `[channels]` instead of the batch's."""
        norm.running_mean, norm.running_var = mean, variance
        norm.eval()


def build_network(scenario: Scenario, settings: Any) -> nn.Module:
    """The network that settings ask for: fully connected, or AlexNet for images in colour.

    Raises:
        ValueError: a setting that this scenario's inputs do not allow.
    """
    s, image = settings, scenario.image
    if len(scenario.inputs) == 3:
        if s.shift >= min(scenario.inputs[1:]):
            raise ValueError(f"shift={s.shift} moves whole images away; use a few pixels")
        return AlexNet(scenario.classes, scenario.seed, s.dropout)
    for name in ("mirror", "shift"):
        if getattr(s, name):
            raise ValueError(f"{name} is for images in colour; {scenario.name} has none")
    for name in ("smooth", "local"):
        if getattr(s, name) and image is None:
            raise ValueError(f"{name} needs images; inputs of {scenario.name} are none")
    sizes = [math.prod(scenario.inputs), *s.sizes, scenario.classes]
    network = MLP(sizes, s.activation, s.init, s.scale, scenario.seed)
    if image is not None:
        weight = network.layers[0].weight
        if s.smooth:
            _smooth(weight, image, s.smooth)
        if s.local:
            _localise(weight, image, s.local, scenario.seed)
    return network


def _truncated_normal(
    outputs: int, inputs: int, scale: float, generator: torch.Generator
) -> Tensor:
    """[W | b] `[outputs, inputs + 1]`."""
    block = torch.randn(outputs, inputs + 1, generator=generator)
    while bool((wrong := block.abs() > 2).any()):
        block[wrong] = torch.randn(int(wrong.sum()), generator=generator)
    return block * scale


def _uniform(outputs: int, inputs: int, scale: float, generator: torch.Generator) -> Tensor:
    """[W | b] `[outputs, inputs + 1]`, b is zero."""
    block = torch.empty(outputs, inputs + 1).uniform_(-1, 1, generator=generator)
    block[:, -1] = 0
    return block * (scale / math.sqrt(inputs))


@torch.no_grad()
def _smooth(weight: Tensor, image: Image, sigma: float) -> None:
    """Blur each neuron's weights as an image, at the same expected mean square."""
    reach = math.ceil(4 * sigma)
    bell = torch.exp(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * sigma**2))
    bell /= bell.norm()
    pictures = weight.reshape(-1, 1, *image[1:])
    across = functional.conv2d(pictures, bell.view(1, 1, 1, -1), padding=(0, reach))
    blurred = functional.conv2d(across, bell.view(1, 1, -1, 1), padding=(reach, 0))
    weight.copy_(blurred.reshape_as(weight))


@torch.no_grad()
def _localise(weight: Tensor, image: Image, width: float, seed: int) -> None:
    """Multiply each neuron's weights by a Gaussian window, at the same mean square.

    Windows have an sd of `width` pixels. Their centres are drawn uniformly from the middle of the
    image, a seventh of its size away from the borders.
    """
    generator = torch.Generator().manual_seed(32_452_843 + seed)
    profiles = []
    for length in image[1:]:
        centre = length / 7 + 5 / 7 * length * torch.rand(len(weight), 1, generator=generator)
        profiles.append(torch.exp(-((torch.arange(length) - centre) ** 2) / (2 * width**2)))
    window = profiles[0][:, None, :, None] * profiles[1][:, None, None, :]
    seen = weight * window.expand(-1, image[0], -1, -1).flatten(1)
    size, new_size = (w.square().mean(1, keepdim=True) for w in (weight, seen))
    weight.copy_(seen * (size / new_size).sqrt())
