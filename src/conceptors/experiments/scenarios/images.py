"""Disjoint, permuted and rotated MNIST (and Fashion-MNIST), and split CIFAR-100."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal.checks import nearest
from conceptors.experiments.scenarios.base import Scenario, Split, Task
from conceptors.experiments.scenarios.data import Arrays, load

VALIDATION = 5_000  # the first training images, as in the paper's own code
Samples = tuple[Tensor, Tensor]  # inputs [n, ...] and labels [n]
Options = dict[str, Any]
_CHOICES = {"class_order": ("fixed", "seed"), "layers": ("all", "last")}


@dataclass(frozen=True)
class ScenarioKind:
    """A scenario that can be built by name: `make(data, seed, options)` returns its tasks."""

    make: Callable[[Any, int, Options], list[Task]]
    data: str
    tasks: int
    about: str
    image: tuple[int, int, int] | None = None  # channels, height, width
    heads: bool = False
    load: Callable[[str], Any] | None = None  # reads what `make` takes, by default `load(data)`


def build(
    name: str, seed: int, *, arrays: Any = None, limit: int | None = None, **options: Any
) -> Scenario:
    """Build a scenario for one seed.

    Args:
        arrays: data to use instead of the scenario's own.
        limit: use only so many samples of each set, for quick trials.
        options: `tasks` (how many), `heads` (one per task: by default on split-cifar100 only),
            `class_order` ("fixed": 0, 1, 2, ..., or "seed": shuffled by the seed), `layers`
            (clinc150: features of "all" layers of the encoder, or the "last").

    Raises:
        ValueError: unknown name or impossible options.
    """
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}{nearest(name, SCENARIOS)}")
    kind = SCENARIOS[name]
    defaults: Options = {"tasks": kind.tasks, "heads": kind.heads, "class_order": "fixed"}
    defaults |= {"layers": "all"} if kind.load else {}
    for option, value in options.items():
        if option not in defaults:
            raise ValueError(f"{name} has no option {option!r}{nearest(option, defaults)}")
        if value not in _CHOICES.get(option, (value,)):
            raise ValueError(f"{option} must be one of {_CHOICES[option]}, got {value!r}")
    chosen = defaults | options
    if chosen["tasks"] < 1:
        raise ValueError(f"tasks must be at least 1, got {chosen['tasks']}")
    data = (kind.load or load)(kind.data) if arrays is None else arrays
    tasks = kind.make(data if limit is None else data.first(limit), seed, chosen)
    for task in tasks:
        if not min(map(len, (task.train, task.validation, task.test))):
            raise ValueError(
                f"task {task.name!r} has no training, validation or test samples with "
                f"limit={limit}; use more samples or fewer tasks"
            )
    first = tasks[0]
    classes = 10 if first.classes is None else len(first.classes)
    inputs = tuple(first.train.x.shape[1:]) if first.train.orders is None else (784,)
    return Scenario(name, tasks, seed, classes, inputs, bool(chosen["heads"]), kind.image)


def by_class(
    parts: Sequence[Samples], order: Tensor, count: int, names: Sequence[str]
) -> list[Task]:
    """Split training, validation and test samples into tasks of equally many classes."""
    tasks = []
    for group, name in zip(order.chunk(count), names):
        train, validation, test = (
            Split(x, y, torch.isin(y, group).nonzero()[:, 0]) for x, y in parts
        )
        is_in = torch.zeros(len(order), dtype=torch.bool).index_fill_(0, group, True)
        tasks.append(Task(name, train, validation, test, is_in))
    return tasks


def class_order(classes: int, seed: int, options: Options) -> Tensor:
    """Classes `[classes]` in the order in which they are learned."""
    if options["class_order"] == "fixed":
        return torch.arange(classes)
    return torch.randperm(classes, generator=_generator(seed, 1))


def check_divisible(classes: int, tasks: int) -> None:
    if classes % tasks:
        raise ValueError(
            f"{classes} classes cannot be shared evenly by {tasks} tasks; use a divisor of "
            f"{classes}"
        )


def permutation(seed: int, task: int) -> Tensor:
    """Where the pixels of a task come from `[784]`; task 0 is unpermuted, as in the paper."""
    if not task:
        return torch.arange(784)
    return torch.randperm(784, generator=_generator(seed, 100 + task))


def _generator(seed: int, purpose: int) -> torch.Generator:
    """Random numbers of one seed for one purpose, whatever else is drawn."""
    return torch.Generator().manual_seed(1_000_003 * (purpose + 1) + seed)


def _disjoint(arrays: Arrays, seed: int, options: Options) -> list[Task]:
    flat = arrays._replace(train_x=arrays.train_x.flatten(1), test_x=arrays.test_x.flatten(1))
    return _tasks_of_classes(flat, class_order(10, seed, options), options["tasks"], "digits")


def _split_cifar(arrays: Arrays, seed: int, options: Options) -> list[Task]:
    mean = torch.tensor([0.5071, 0.4865, 0.4409])[:, None, None]
    std = torch.tensor([0.2673, 0.2564, 0.2762])[:, None, None]
    train_x, test_x = ((x / 255 - mean) / std for x in (arrays.train_x, arrays.test_x))
    scaled = arrays._replace(train_x=train_x, test_x=test_x)
    order = class_order(100, seed, options)
    return _tasks_of_classes(scaled, order, options["tasks"], "classes")


def _tasks_of_classes(arrays: Arrays, order: Tensor, count: int, word: str) -> list[Task]:
    """Tasks of equally many classes, which `word` names."""
    check_divisible(len(order), count)
    x, y = arrays.train_x, arrays.train_y.long()
    is_validation = torch.arange(len(y)) < _validation_count(arrays)
    names = []
    for k, group in enumerate(order.chunk(count)):
        classes = ", ".join(map(str, group.tolist()))
        names.append(f"{word} {classes if len(group) <= 5 else k + 1}")
        # with few images, too, a task gets two: norms need more than one
        members = torch.isin(y, group).nonzero()[:, 0]
        if int(is_validation[members].sum()) < 2:
            is_validation[members[: max(1, min(2, len(members) // 2))]] = True
    train, validation = ((x[chosen], y[chosen]) for chosen in (~is_validation, is_validation))
    test = (arrays.test_x, arrays.test_y.long())
    return by_class([train, validation, test], order, count, names)


def _validation_count(arrays: Arrays) -> int:
    return min(VALIDATION, len(arrays.train_x) // 10)


def _permuted(arrays: Arrays, seed: int, options: Options) -> list[Task]:
    # the same tensors for every task: joint training sees that only the order differs
    parts = _all_classes(arrays.train_x.flatten(1), arrays.test_x.flatten(1), arrays)
    tasks = []
    for k in range(options["tasks"]):
        orders = permutation(seed, k)[None]
        train, validation, test = (Split(x, y, torch.arange(len(x)), orders) for x, y in parts)
        tasks.append(Task(f"permutation {k}" if k else "original", train, validation, test))
    return tasks


def _rotated(arrays: Arrays, seed: int, options: Options) -> list[Task]:
    """Tasks turn the images by 0° to 180°, evenly spaced."""
    tasks = []
    for k in range(options["tasks"]):
        angle = 180.0 * k / max(1, options["tasks"] - 1)
        train_x, test_x = (_turned(x, angle).flatten(1) for x in (arrays.train_x, arrays.test_x))
        parts = _all_classes(train_x, test_x, arrays)
        train, validation, test = (Split(x, y, torch.arange(len(x))) for x, y in parts)
        tasks.append(Task(f"turned {angle:.0f}°", train, validation, test))
    return tasks


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


_MNIST = (
    ("disjoint", _disjoint, 2, "ten classes in groups, one head", (1, 28, 28)),
    ("permuted", _permuted, 10, "all classes, pixels shuffled for each task", None),
    ("rotated", _rotated, 10, "all classes, turned further for each task", (1, 28, 28)),
)
SCENARIOS = {
    f"{word}-{name}": ScenarioKind(make, data, tasks, about, image)
    for name, data in {"mnist": "mnist", "fashion": "fashion-mnist"}.items()
    for word, make, tasks, about, image in _MNIST
}
SCENARIOS["split-cifar100"] = ScenarioKind(
    _split_cifar, "cifar100", 10, "100 classes in groups, one head per task", (3, 32, 32), True
)
