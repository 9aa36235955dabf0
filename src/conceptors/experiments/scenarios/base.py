"""Sequences of tasks as one seed sees them."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Samples with their labels, and with their pixels in a given order."""

    x: Tensor  # [n, ...] bytes or floats
    y: Tensor  # [n]
    order: Tensor | None = None  # [d]: where each pixel comes from; None: all stay where they are

    def __len__(self) -> int:
        return len(self.y)

    def take(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs `[batch, ...]` as floats and labels `[batch]` of samples at some places."""
        x = self.ordered(self.x[places])
        return x.float() / 255 if x.dtype == torch.uint8 else x, self.y[places]

    def drawn(self, count: int, seed: int) -> Tensor:
        """Random places of so many samples, of all if 0, for `take`."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))
        return order[: count or None].to(self.y.device)

    def ordered(self, x: Tensor) -> Tensor:
        """Samples with their pixels in order; bytes remain bytes."""
        return x if self.order is None else x.flatten(1)[:, self.order]


@dataclass(frozen=True)
class Task:
    """Training, validation and test samples of one task, and its classes."""

    name: str
    train: Split
    validation: Split
    test: Split
    classes: Tensor | None = None  # [all classes] bool, None if all


@dataclass(frozen=True)
class Scenario:
    """A sequence of tasks for one seed."""

    name: str
    tasks: list[Task]
    seed: int
    classes: int
    inputs: tuple[int, ...]  # shape of one sample
    heads: bool = False  # one head per task: the task is known when testing
    image: tuple[int, int, int] | None = None  # channels, height, width, if samples are images

    def to(self, device: torch.device) -> "Scenario":
        """Move all samples to a device; tensors that tasks share are moved once."""

        @cache
        def move(value: Any) -> Any:  # tensors are hashed by identity
            if isinstance(value, (Split, Task)):
                return replace(value, **{name: move(part) for name, part in vars(value).items()})
            return value.to(device) if isinstance(value, Tensor) else value

        return replace(self, tasks=[move(task) for task in self.tasks])


def union(splits: list[Split]) -> Split:
    """Copy several tasks' samples into one split, for joint training."""
    x = torch.cat([split.ordered(split.x) for split in splits])
    return Split(x, torch.cat([split.y for split in splits]))
