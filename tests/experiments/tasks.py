"""Small data and scenarios that can be learned, for the tests of methods and experiments."""

from __future__ import annotations

import torch

from conceptors.experiments.scenarios import Scenario, Split, Task
from conceptors.experiments.scenarios.data import Arrays


def blobs(
    name: str = "mnist", *, train: int = 440, test: int = 100, progress: bool = True
) -> Arrays:
    """Images of bytes around a picture of their class, in place of a data set."""
    classes, shape = (100, (3, 32, 32)) if name == "cifar100" else (10, (28, 28))
    draw = torch.Generator().manual_seed(len(name))
    pictures = torch.rand(classes, *shape, generator=draw)

    def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % classes
        y = y[torch.randperm(count, generator=draw)]
        noise = 0.3 * torch.rand(count, *shape, generator=draw)
        return ((0.7 * pictures[y] + noise) * 255).to(torch.uint8), y.to(torch.uint8)

    return Arrays(*images(train), *images(test))


def small(seeds: list[int], *, tasks: int = 2, inputs: int = 6, n: int = 60) -> Scenario:
    """A scenario of four classes in a few dimensions; every task shifts the inputs."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(4, inputs, generator=draw)
    made = []
    for number in range(tasks):
        shift = torch.randn(inputs, generator=draw)

        def split(count: int, shift: torch.Tensor = shift) -> Split:
            y = torch.arange(count) % 4
            x = centres[y] + 0.5 * torch.randn(count, inputs, generator=draw) + shift
            return Split.of(x, y, [torch.arange(count) for _ in seeds])

        made.append(Task(f"task {number + 1}", split(n), split(24), split(40)))
    return Scenario("small", made, seeds, 4, (inputs,))
