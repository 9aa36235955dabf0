"""Networks of the experiments, drawn with the random numbers of one seed."""

from __future__ import annotations

import math
from collections.abc import Iterable
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
        draw = {"truncated": _truncated_normal, "uniform": _uniform}[init]
        generator = torch.Generator().manual_seed(7_919 + seed)
        with torch.no_grad():
            for (inputs, outputs), layer in zip(pairwise(sizes), self.layers):
                block = draw(outputs, inputs, scale, generator)
                for parameter, value in zip(layer.parameters(), (block[:, :-1], block[:, -1])):
                    parameter.copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        out: Tensor = self.layers[-1](x)
        return out


class AlexNet(nn.Module):
    """The five-layer network of the GPM paper for 32 x 32 images; `width` scales all its layers.

    Norms use the statistics of each batch, in tests too, as that paper's code does, until
    `fix_norms`.
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

    def train(self, mode: bool = True) -> AlexNet:
        """Keep fixed norms in evaluation mode, in which torch uses their statistics."""
        super().train(mode)
        for norm in self.norms:
            norm.train(mode and not bool(norm.track_running_stats))
        return self

    @torch.no_grad()
    def fix_norms(self, batches: Iterable[Tensor]) -> None:
        """Measure mean and variance on batches of images, and use them from then on."""
        self.eval()
        for norm in self.norms:
            assert isinstance(norm, (nn.BatchNorm1d, nn.BatchNorm2d))
            norm.momentum, norm.track_running_stats = None, True  # None: the mean over batches
            norm.running_mean = torch.zeros_like(norm.weight)
            norm.running_var = torch.ones_like(norm.weight)
            norm.num_batches_tracked = torch.tensor(0, device=norm.weight.device)
            norm.train()
        for x in batches:
            self(x)
        self.train()


def build_network(scenario: Scenario, settings: Any) -> nn.Module:
    """Build the network that settings ask for: fully connected, or AlexNet for colour images.

    Raises:
        ValueError: a setting that does not apply to this scenario's inputs.
    """
    s, image = settings, scenario.image
    if len(scenario.inputs) == 3:
        if s.shift >= min(scenario.inputs[1:]):
            raise ValueError(f"shift={s.shift} moves whole images away; use a few pixels")
        return AlexNet(scenario.classes, scenario.seed, s.dropout)
    for name in ("mirror", "shift", *(("smooth", "local") if image is None else ())):
        if getattr(s, name):
            raise ValueError(
                f"{name} does not apply to the inputs of {scenario.name}; leave it out"
            )
    sizes = [math.prod(scenario.inputs), *s.sizes, scenario.classes]
    network = MLP(sizes, s.activation, s.init, s.scale, scenario.seed)
    weight = next(network.parameters())
    with torch.no_grad():
        if image is not None and s.smooth:
            weight.copy_(_blurred(weight, image, s.smooth))
        if image is not None and s.local:
            weight.copy_(_windowed(weight, image, s.local, scenario.seed))
    return network


def _truncated_normal(
    outputs: int, inputs: int, scale: float, generator: torch.Generator
) -> Tensor:
    """[W | b] `[outputs, inputs + 1]`."""
    block = torch.empty(outputs, inputs + 1).normal_(generator=generator)
    while bool((wrong := block.abs() > 2).any()):
        block[wrong] = torch.randn(int(wrong.sum()), generator=generator)
    return block * scale


def _uniform(outputs: int, inputs: int, scale: float, generator: torch.Generator) -> Tensor:
    """[W | b] `[outputs, inputs + 1]` with b = 0."""
    block = torch.empty(outputs, inputs + 1).uniform_(-1, 1, generator=generator)
    block[:, -1] = 0
    return block * (scale / math.sqrt(inputs))


def _blurred(weight: Tensor, image: Image, sigma: float) -> Tensor:
    """Blur each neuron's weights as an image, at the same expected mean square."""
    reach = math.ceil(4 * sigma)
    bell = torch.exp(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * sigma**2))
    bell /= bell.norm()
    pictures = weight.reshape(-1, 1, *image[1:])
    across = functional.conv2d(pictures, bell.view(1, 1, 1, -1), padding=(0, reach))
    return functional.conv2d(across, bell.view(1, 1, -1, 1), padding=(reach, 0)).reshape_as(weight)


def _windowed(weight: Tensor, image: Image, width: float, seed: int) -> Tensor:
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
