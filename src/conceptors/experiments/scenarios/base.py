"""Sequences of tasks, for one seed or for several at once.

All seeds of a run are held together: inputs come as `[seeds, batch, ...]`, so that one stacked
network can learn them in one go. What a seed sees depends on that seed alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Samples of one task (or of several together), for every seed.

    Seed s has the samples `members[s, :sizes[s]]`. With permutations, sample i is seen in the
    order `permutations[s, kinds[s, i]]` of its pixels.
    """

    x: Tensor  # [n, ...] bytes or floats, shared by all seeds
    y: Tensor  # [n]
    members: Tensor  # [seeds, m], padded
    counts: tuple[int, ...]  # a seed
    permutations: Tensor | None = None  # [seeds, kinds, d]
    kinds: Tensor | None = None  # [seeds, m]

    @staticmethod
    def of(
        x: Tensor, y: Tensor, members: list[Tensor], permutations: Tensor | None = None
    ) -> Split:
        """From a list of members a seed."""
        padded = torch.nn.utils.rnn.pad_sequence(members, batch_first=True)
        return Split(x, y, padded, tuple(len(m) for m in members), permutations)

    def sizes(self) -> list[int]:
        return list(self.counts)

    def take(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs `[seeds, batch, ...]` and labels `[seeds, batch]` at places `[seeds, batch]`."""
        index = self.members.gather(1, places)
        x = self.x[index]
        if self.permutations is not None:  # bytes, where they are: a quarter of the numbers' size
            x = x.flatten(2)
            if self.kinds is None:
                orders = self.permutations.expand(-1, x.shape[1], -1)
            else:
                seeds = torch.arange(len(index), device=index.device)[:, None]
                orders = self.permutations[seeds, self.kinds.gather(1, places)]
            x = x.gather(2, orders)
        return x.float() / 255 if x.dtype == torch.uint8 else x, self.y[index]

    def of_seed(self, i: int) -> Split:
        """The samples of one seed, by its place among the seeds."""

        def own(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[i : i + 1]

        members = self.members[i : i + 1]
        counts = self.counts[i : i + 1]
        return Split(self.x, self.y, members, counts, own(self.permutations), own(self.kinds))

    def to(self, device: torch.device, moved: dict[int, Tensor]) -> Split:
        """On a device; tensors that splits share are moved once (`moved` remembers them)."""

        def move(value: Any) -> Any:
            if value is None:
                return None
            if id(value) not in moved:
                moved[id(value)] = value.to(device)
            return moved[id(value)]

        members, permutations = move(self.members), move(self.permutations)
        return Split(
            move(self.x), move(self.y), members, self.counts, permutations, move(self.kinds)
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
    heads: bool = False  # one head per task: the task is known when testing
    options: dict[str, Any] = field(default_factory=dict)
    stackable: bool = True  # whether several seeds can be learned as one stacked network
    image: tuple[int, int, int] | None = None  # channels, height, width, if samples are images

    def to(self, device: torch.device) -> Scenario:
        moved: dict[int, Tensor] = {}
        return replace(self, tasks=[task.to(device, moved) for task in self.tasks])


def union(splits: list[Split]) -> Split:
    """Several tasks' samples as one split: what joint training learns from."""
    first = splits[0]
    seeds = range(len(first.counts))
    own = [[s.members[i, : s.counts[i]] for s in splits] for i in seeds]
    if first.permutations is not None:  # one set of images, seen in several orders
        orders = torch.cat([s.permutations for s in splits if s.permutations is not None], 1)
        kinds = [
            torch.cat([torch.full_like(part, k) for k, part in enumerate(parts)]) for parts in own
        ]
        joined = Split.of(first.x, first.y, [torch.cat(parts) for parts in own], orders)
        return replace(joined, kinds=torch.nn.utils.rnn.pad_sequence(kinds, batch_first=True))
    if all(s.x is first.x for s in splits):
        return Split.of(first.x, first.y, [torch.cat(parts) for parts in own])
    offsets = [0]
    for split in splits[:-1]:
        offsets.append(offsets[-1] + len(split.x))
    members = [torch.cat([part + o for part, o in zip(parts, offsets)]) for parts in own]
    return Split.of(torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits]), members)
