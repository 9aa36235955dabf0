"""Disjoint, permuted and rotated MNIST (and Fashion-MNIST), and split CIFAR-100."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal.checks import nearest
from conceptors.experiments.scenarios.base import Scenario, Split, Task
from conceptors.experiments.scenarios.data import Arrays, load

VALIDATION = 5_000  # the first training images, as in the paper's own code
Samples = tuple[Tensor, Tensor]  # inputs [n, ...] and labels [n]


@dataclass(frozen=True)
class ScenarioKind:
    """A scenario that can be built by name: `make(data, seed, options)` returns it."""

    make: Callable[[Any, int, dict[str, Any]], Scenario]
    data: str
    tasks: int
    about: str
    load: Callable[[str], Any] | None = None  # what `make` takes, by default `load(data)`
    more: dict[str, Any] = field(default_factory=dict)  # defaults of options of its own


def build(
    name: str, seed: int, *, arrays: Any = None, limit: int | None = None, **options: Any
) -> Scenario:
    """A scenario for one seed.

    Args:
        arrays: data to use instead of the scenario's own.
        limit: use only so many samples of each set, for quick trials.
        options: `tasks` (how many), `heads` (one per task: split-cifar100, by default yes;
            clinc150, by default no), `class_order` ("fixed": 0, 1, 2, ..., or "seed": shuffled by
            the seed), `layers` (features of "all" layers of the encoder, or the "last": clinc150).

    Raises:
        ValueError: unknown name or impossible options.
    """
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}{nearest(name, SCENARIOS)}")
    kind = SCENARIOS[name]
    defaults = {"tasks": kind.tasks, "heads": None, "class_order": "fixed"} | kind.more
    for option in options:
        if option not in defaults:
            raise ValueError(f"{name} has no option {option!r}{nearest(option, defaults)}")
    chosen = defaults | options
    if chosen["tasks"] < 1:
        raise ValueError(f"tasks must be at least 1, got {chosen['tasks']}")
    for option, words in {"class_order": ("fixed", "seed"), "layers": ("all", "last")}.items():
        if chosen.get(option, words[0]) not in words:
            raise ValueError(f"{option} must be one of {words}, got {chosen[option]!r}")
    data = (kind.load or load)(kind.data) if arrays is None else arrays
    data = data if limit is None else data.first(limit)
    scenario = kind.make(data, seed, {"name": name, "limit": limit, **chosen})
    for task in scenario.tasks:
        if not min(map(len, (task.train, task.validation, task.test))):
            raise ValueError(
                f"task {task.name!r} has no training, validation or test samples with "
                f"limit={limit}; use more samples or fewer tasks"
            )
    return scenario


def by_class(
    train: Samples,
    validation: Samples,
    test: Samples,
    groups: list[Tensor] | tuple[Tensor, ...],
    names: list[str],
) -> list[Task]:
    """One task per group of classes `[k]`."""
    classes = sum(len(group) for group in groups)
    tasks = []
    for group, name in zip(groups, names):
        first, second, third = (
            Split(x, y, torch.isin(y, group).nonzero()[:, 0]) for x, y in (train, validation, test)
        )
        is_in = torch.zeros(classes, dtype=torch.bool).index_fill_(0, group, True)
        tasks.append(Task(name, first, second, third, is_in))
    return tasks


def class_order(classes: int, seed: int, options: dict[str, Any]) -> Tensor:
    """Classes `[classes]` in the order in which they are learned."""
    if options["class_order"] == "fixed":
        return torch.arange(classes)
    return torch.randperm(classes, generator=_generator(seed, 1))


def permutation(seed: int, task: int) -> Tensor:
    """Where the pixels of a task, numbered from 0, come from `[784]`.

    Task 0 is unpermuted, as in the paper.
    """
    if not task:
        return torch.arange(784)
    return torch.randperm(784, generator=_generator(seed, 100 + task))


def _generator(seed: int, purpose: int) -> torch.Generator:
    """Random numbers of one seed for one purpose, whatever else is drawn."""
    return torch.Generator().manual_seed(1_000_003 * (purpose + 1) + seed)


def _disjoint(arrays: Arrays, seed: int, options: dict[str, Any]) -> Scenario:
    flat = arrays._replace(train_x=arrays.train_x.flatten(1), test_x=arrays.test_x.flatten(1))
    tasks = _in_groups(flat, class_order(10, seed, options), options["tasks"], "digits")
    return Scenario(options["name"], tasks, seed, 10, (784,), False, options, (1, 28, 28))


def _split_cifar(arrays: Arrays, seed: int, options: dict[str, Any]) -> Scenario:
    mean = torch.tensor([0.5071, 0.4865, 0.4409])[:, None, None]
    std = torch.tensor([0.2673, 0.2564, 0.2762])[:, None, None]
    scaled = arrays._replace(
        train_x=(arrays.train_x / 255 - mean) / std, test_x=(arrays.test_x / 255 - mean) / std
    )
    tasks = _in_groups(scaled, class_order(100, seed, options), options["tasks"], "classes")
    heads, image = options["heads"] is not False, (3, 32, 32)
    return Scenario(options["name"], tasks, seed, 100, image, heads, options, image)


def _in_groups(arrays: Arrays, order: Tensor, count: int, word: str) -> list[Task]:
    """Tasks of as many classes each, which `word` calls by their kind."""
    if len(order) % count:
        raise ValueError(
            f"{len(order)} classes cannot be shared evenly by {count} tasks; use a divisor of "
            f"{len(order)}"
        )
    groups = order.chunk(count)
    few = [", ".join(map(str, group.tolist())) for group in groups]
    names = [f"{word} {few[k] if len(groups[0]) <= 5 else k + 1}" for k in range(count)]
    return by_class(*_parted(arrays, groups), groups, names)


def _parted(arrays: Arrays, groups: tuple[Tensor, ...]) -> tuple[Samples, Samples, Samples]:
    """Training, validation and test images with labels, for one task per group of classes."""
    x, y = arrays.train_x, arrays.train_y.long()
    is_validation = torch.arange(len(y)) < _validation_count(arrays)
    for group in groups:  # of few images, too, tasks get two: norms need more than one
        members = torch.isin(y, group).nonzero()[:, 0]
        if int(is_validation[members].sum()) < 2:
            is_validation[members[: max(1, min(2, len(members) // 2))]] = True
    train, validation = ((x[chosen], y[chosen]) for chosen in (~is_validation, is_validation))
    return train, validation, (arrays.test_x, arrays.test_y.long())


def _validation_count(arrays: Arrays) -> int:
    return min(VALIDATION, len(arrays.train_x) // 10)


def _permuted(arrays: Arrays, seed: int, options: dict[str, Any]) -> Scenario:
    parts = _all_classes(arrays.train_x.flatten(1), arrays.test_x.flatten(1), arrays)
    tasks = []
    for k in range(options["tasks"]):
        # the same tensors for every task: joint training sees that only the order differs
        orders = permutation(seed, k)[None]
        train, validation, test = (Split(x, y, torch.arange(len(x)), orders) for x, y in parts)
        tasks.append(Task(f"permutation {k}" if k else "original", train, validation, test))
    return Scenario(options["name"], tasks, seed, 10, (784,), False, options)


def _rotated(arrays: Arrays, seed: int, options: dict[str, Any]) -> Scenario:
    """Tasks turn the images by 0° to 180°, evenly spaced."""
    tasks = []
    for k in range(options["tasks"]):
        angle = 180.0 * k / max(1, options["tasks"] - 1)
        train_x, test_x = (_turned(x, angle).flatten(1) for x in (arrays.train_x, arrays.test_x))
        parts = _all_classes(train_x, test_x, arrays)
        train, validation, test = (Split(x, y, torch.arange(len(x))) for x, y in parts)
        tasks.append(Task(f"turned {angle:.0f}°", train, validation, test))
    return Scenario(options["name"], tasks, seed, 10, (784,), False, options, (1, 28, 28))


def _all_classes(train_x: Tensor, test_x: Tensor, arrays: Arrays) -> list[Samples]:
    """Training, validation and test samples of all classes."""
    count, y = _validation_count(arrays), arrays.train_y.long()
    test = (test_x, arrays.test_y.long())
    return [(train_x[count:], y[count:]), (train_x[:count], y[:count]), test]


def _turned(images: Tensor, angle: float) -> Tensor:
    """Images `[n, 28, 28]` of bytes turned about their centre, bilinear."""
    if angle == 0:
        return images
    turn = torch.tensor(angle).deg2rad()
    matrix = torch.tensor([[turn.cos(), -turn.sin(), 0.0], [turn.sin(), turn.cos(), 0.0]])
    parts = []
    for part in images.split(10_000):
        size = [len(part), 1, *part.shape[1:]]
        grid = functional.affine_grid(matrix.expand(len(part), 2, 3), size, align_corners=False)
        turned = functional.grid_sample(part[:, None].float(), grid, align_corners=False)
        parts.append(turned[:, 0].round().to(torch.uint8))
    return torch.cat(parts)


_SHUFFLED, _TURNED = "pixels shuffled per task", "turned further per task"
SCENARIOS = {
    "disjoint-mnist": ScenarioKind(_disjoint, "mnist", 2, "ten digits in groups, one head"),
    "permuted-mnist": ScenarioKind(_permuted, "mnist", 10, f"all digits, {_SHUFFLED}"),
    "rotated-mnist": ScenarioKind(_rotated, "mnist", 10, f"all digits, {_TURNED}"),
    "disjoint-fashion": ScenarioKind(
        _disjoint, "fashion-mnist", 2, "ten garments in groups, one head"
    ),
    "permuted-fashion": ScenarioKind(_permuted, "fashion-mnist", 10, f"all garments, {_SHUFFLED}"),
    "rotated-fashion": ScenarioKind(_rotated, "fashion-mnist", 10, f"all garments, {_TURNED}"),
    "split-cifar100": ScenarioKind(
        _split_cifar, "cifar100", 10, "a hundred classes in groups, heads"
    ),
}
