"""Sequences of tasks as one seed sees them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Samples `members` of x and y; sample i is seen with its pixels in order `kinds[i]`."""

    x: Tensor  # [n, ...] bytes or floats, shared by all tasks
    y: Tensor  # [n]
    members: Tensor  # [m]
    orders: Tensor | None = None  # [kinds, d], None: pixels stay where they are
    kinds: Tensor | None = None  # [m], None: all in the first order

    def __len__(self) -> int:
        return len(self.members)

    def take(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs `[batch, ...]` and labels `[batch]` at places `[batch]` of this split."""
        index = self.members[places]
        x = self.x[index]
        if self.orders is not None:  # bytes are reordered: a quarter of the floats' memory
            x = x.flatten(1)
            chosen = self.orders[:1] if self.kinds is None else self.orders[self.kinds[places]]
            x = x.gather(1, chosen.expand(len(x), -1))
        return x.float() / 255 if x.dtype == torch.uint8 else x, self.y[index]


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

    def to(self, device: torch.device) -> Scenario:
        """Move all samples to a device; tensors that tasks share are moved once."""
        moved: dict[int, Tensor] = {}

        def move(value: Any) -> Any:
            if isinstance(value, (Split, Task)):
                names = [entry.name for entry in fields(value)]
                return replace(value, **{name: move(getattr(value, name)) for name in names})
            if not isinstance(value, Tensor):
                return value
            if id(value) not in moved:
                moved[id(value)] = value.to(device)
            return moved[id(value)]

        return replace(self, tasks=[move(task) for task in self.tasks])


def union(splits: list[Split]) -> Split:
    """Join several tasks' samples into one split, for joint training."""
    first, members = splits[0], [split.members for split in splits]
    if first.orders is not None:  # one set of images, seen in several orders
        orders = torch.cat([split.orders for split in splits if split.orders is not None])
        kinds = [torch.full_like(part, k) for k, part in enumerate(members)]
        return Split(first.x, first.y, torch.cat(members), orders, torch.cat(kinds))
    if all(split.x is first.x for split in splits):
        return Split(first.x, first.y, torch.cat(members))
    starts = torch.tensor([0, *(len(split.x) for split in splits)]).cumsum(0).tolist()
    joined = torch.cat([part + start for part, start in zip(members, starts)])
    x, y = (torch.cat([getattr(split, name) for split in splits]) for name in ("x", "y"))
    return Split(x, y, joined)
