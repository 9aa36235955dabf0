"""Sequences of tasks, for one seed or for several at once.

All seeds of a run are held together: inputs come as `[seeds, batch, ...]`, so that one stacked
network can learn them in one go. What a seed sees depends on that seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Samples of one task (or of several together), for every seed.

    `members[s]` are the samples that seed s has; `parts[s]`, where given, says with which
    permutation of the pixels each of them is seen.
    """

    x: Tensor  # [n, ...] bytes or floats, shared by all seeds
    y: Tensor  # [n]
    members: list[Tensor]  # a seed: [m]
    permutations: Tensor | None = None  # [seeds, kinds, d]
    parts: list[Tensor] | None = None  # a seed: [m], which kind

    def sizes(self) -> list[int]:
        return [len(m) for m in self.members]

    def take(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs `[seeds, batch, ...]` and labels `[seeds, batch]` at places `[seeds, batch]`."""
        index = torch.stack([m[p] for m, p in zip(self.members, places)])
        x = self.x[index]
        x = x.float() / 255 if x.dtype == torch.uint8 else x
        if self.permutations is not None:
            x = x.flatten(2)
            kinds = torch.zeros_like(index)
            if self.parts is not None:
                kinds = torch.stack([k[p] for k, p in zip(self.parts, places)])
            orders = torch.stack([o[k] for o, k in zip(self.permutations, kinds)])
            x = x.gather(2, orders)
        return x, self.y[index]

    def to(self, device: torch.device, moved: dict[int, Tensor]) -> Split:
        """On a device; tensors that splits share are moved once (`moved` remembers them)."""

        def move(value: Any) -> Any:
            if isinstance(value, list):
                return [move(v) for v in value]
            if not isinstance(value, Tensor):
                return value
            if id(value) not in moved:
                moved[id(value)] = value.to(device)
            return moved[id(value)]

        return Split(
            move(self.x),
            move(self.y),
            move(self.members),
            move(self.permutations),
            move(self.parts),
        )


@dataclass(frozen=True)
class Task:
    """One task: training, validation and test samples, and the classes it is about."""

    name: str
    train: Split
    validation: Split
    test: Split
    classes: Tensor | None = None  # [seeds, all classes] bool, None if all

    def to(self, device: torch.device, moved: dict[int, Tensor]) -> Task:
        splits = (s.to(device, moved) for s in (self.train, self.validation, self.test))
        train, validation, test = splits
        classes = None if self.classes is None else self.classes.to(device)
        return Task(self.name, train, validation, test, classes)


@dataclass(frozen=True)
class Scenario:
    """A sequence of tasks with its meaning."""

    name: str
    tasks: list[Task]
    seeds: list[int]
    classes: int
    inputs: tuple[int, ...]  # shape of one sample
    heads: bool = False  # a head a task: the task is known when testing
    options: dict[str, Any] = field(default_factory=dict)

    def to(self, device: torch.device) -> Scenario:
        moved: dict[int, Tensor] = {}
        return Scenario(
            self.name,
            [task.to(device, moved) for task in self.tasks],
            self.seeds,
            self.classes,
            self.inputs,
            self.heads,
            self.options,
        )


def union(splits: list[Split]) -> Split:
    """Several tasks' samples as one split: what joint training learns from."""
    first = splits[0]
    seeds = range(len(first.members))
    if first.permutations is not None:  # one set of images, seen in several orders
        orders = torch.cat([_required(s.permutations) for s in splits], 1)
        members = [torch.cat([s.members[i] for s in splits]) for i in seeds]
        parts = [
            torch.cat([torch.full_like(s.members[i], k) for k, s in enumerate(splits)])
            for i in seeds
        ]
        return Split(first.x, first.y, members, orders, parts)
    if all(s.x is first.x for s in splits):
        members = [torch.cat([s.members[i] for s in splits]) for i in seeds]
        return Split(first.x, first.y, members)
    offsets = [0]
    for split in splits[:-1]:
        offsets.append(offsets[-1] + len(split.x))
    members = [torch.cat([s.members[i] + o for s, o in zip(splits, offsets)]) for i in seeds]
    x, y = torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits])
    return Split(x, y, members)


def _required(value: Tensor | None) -> Tensor:
    if value is None:
        raise ValueError("some tasks have permutations and some have not")
    return value
