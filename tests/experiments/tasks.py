"""Small data and scenarios that can be learned, for the tests of methods and experiments."""

import torch

from conceptors.experiments.scenarios.base import Scenario, Split, Task
from conceptors.experiments.scenarios.data.read import Data


def blobs(name: str = "mnist", *, train: int = 440, test: int = 100) -> Data:
    """Images of bytes around a picture of their class; a tenth of `train` is for validation."""
    classes, shape = (100, (3, 32, 32)) if name == "cifar100" else (10, (784,))
    draw = torch.Generator().manual_seed(len(name))
    pictures = torch.rand(classes, *shape, generator=draw)

    def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(count) % classes
        y = y[torch.randperm(count, generator=draw)]
        noise = 0.3 * torch.rand(count, *shape, generator=draw)
        return ((0.7 * pictures[y] + noise) * 255).to(torch.uint8), y

    (x, y), held_out = images(train), train // 10
    return Data([(x[held_out:], y[held_out:]), (x[:held_out], y[:held_out]), images(test)])


def small(seed: int = 0, *, tasks: int = 2, inputs: int = 6, n: int = 60) -> Scenario:
    """A scenario of four classes in a few dimensions; every task shifts the inputs."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(4, inputs, generator=draw)
    sequence = []
    for number in range(tasks):
        shift = torch.randn(inputs, generator=draw)

        def split(count: int, shift: torch.Tensor = shift) -> Split:
            y = torch.arange(count) % 4
            x = centres[y] + 0.5 * torch.randn(count, inputs, generator=draw) + shift
            return Split(x, y)

        sequence.append(Task(f"task {number + 1}", split(n), split(24), split(40)))
    return Scenario("small", sequence, seed, 4, (inputs,))


def one_by_one(seed: int = 0) -> Scenario:
    """Four classes in six dimensions, one per task."""
    draw = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(4, 6, generator=draw)
    sequence = []
    for label in range(4):

        def split(count: int, label: int = label) -> Split:
            x = centres[label] + torch.randn(count, 6, generator=draw)
            return Split(x, torch.full((count,), label))

        sequence.append(Task(f"class {label}", split(50), split(20), split(40)))
    return Scenario("one by one", sequence, seed, 4, (6,))
