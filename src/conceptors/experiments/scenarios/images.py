"""All scenarios: MNIST and Fashion-MNIST in three forms, split CIFAR-100, and CLINC150."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal.checks import nearest
from conceptors.experiments.scenarios.base import Scenario, Split, Task
from conceptors.experiments.scenarios.data.read import Arrays, load
from conceptors.experiments.scenarios.data.sentences import Encoded, load_encoded

VALIDATION = 5_000  # the first training images, as in the paper's own code
Samples = tuple[Tensor, Tensor]  # inputs [n, ...] and labels [n]


@dataclass(frozen=True)
class ScenarioKind:
    """A scenario that can be built by name: `make(data, seed, count)` returns its tasks."""

    make: Callable[[Any, int, int], list[Task]]
    data: str
    tasks: int
    about: str
    image: tuple[int, int, int] | None = None  # channels, height, width
    heads: bool = False


def build(
    name: str,
    seed: int,
    *,
    tasks: int | None = None,
    heads: bool | None = None,
    limit: int | None = None,
    arrays: Any = None,
) -> Scenario:
    """Build a scenario for one seed.

    Args:
        tasks: how many tasks.
        heads: whether each task has its own head (by default on split-cifar100 only).
        limit: use only so many samples of each set, for quick trials.
        arrays: data to use instead of the scenario's own.

    Raises:
        ValueError: unknown name or impossible options.
    """
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}{nearest(name, SCENARIOS)}")
    kind = SCENARIOS[name]
    count = kind.tasks if tasks is None else tasks
    if count < 1:
        raise ValueError(f"tasks must be at least 1, got {count}")
    data = arrays
    if arrays is None:
        data = load_encoded(kind.data) if kind.data == "clinc150" else load(kind.data)
    sequence = kind.make(data if limit is None else data.first(limit), seed, count)
    for task in sequence:
        if not min(map(len, (task.train, task.validation, task.test))):
            raise ValueError(
                f"task {task.name!r} has no training, validation or test samples with "
                f"limit={limit}; use more samples or fewer tasks"
            )
    first = sequence[0]
    classes = 10 if first.classes is None else len(first.classes)
    has_heads = kind.heads if heads is None else heads
    inputs = tuple(first.train.x.shape[1:])
    return Scenario(name, sequence, seed, classes, inputs, has_heads, kind.image)


# --- tasks of different classes ----------------------------------------------------------


def _disjoint(arrays: Arrays, seed: int, count: int) -> list[Task]:
    flat = arrays._replace(train_x=arrays.train_x.flatten(1), test_x=arrays.test_x.flatten(1))
    return _classes_of_images(flat, 10, count, "digits")


def _split_cifar(arrays: Arrays, seed: int, count: int) -> list[Task]:
    mean = torch.tensor([0.5071, 0.4865, 0.4409])[:, None, None]
    std = torch.tensor([0.2673, 0.2564, 0.2762])[:, None, None]
    train_x, test_x = ((x / 255 - mean) / std for x in (arrays.train_x, arrays.test_x))
    scaled = arrays._replace(train_x=train_x, test_x=test_x)
    return _classes_of_images(scaled, 100, count, "classes")


def _domains(data: Encoded, seed: int, count: int) -> list[Task]:
    """Intents are numbered domain by domain."""
    classes, is_by_domain = int(data.train[1].max()) + 1, count == len(data.groups)
    names = data.groups if is_by_domain else [f"intents {k + 1}" for k in range(count)]
    return _by_class([(x.flatten(1), y) for x, y in data.parts], classes, names)


def _classes_of_images(arrays: Arrays, classes: int, count: int, word: str) -> list[Task]:
    """Tasks of equally many classes, which `word` names."""
    size, y = classes // count, arrays.train_y.long()
    is_validation = torch.arange(len(y)) < _validation_count(arrays)
    names = []
    for k in range(count):
        numbers = ", ".join(map(str, range(k * size, (k + 1) * size)))
        names.append(f"{word} {numbers if size <= 5 else k + 1}")
        # with few images, too, a task gets two: norms need more than one
        members = (y // max(1, size) == k).nonzero()[:, 0]
        if int(is_validation[members].sum()) < 2:
            is_validation[members[: max(1, min(2, len(members) // 2))]] = True
    train, validation = ((arrays.train_x[i], y[i]) for i in (~is_validation, is_validation))
    parts = [train, validation, (arrays.test_x, arrays.test_y.long())]
    return _by_class(parts, classes, names)


def _by_class(parts: Sequence[Samples], classes: int, names: Sequence[str]) -> list[Task]:
    """Split training, validation and test samples into one task per name."""
    if classes % len(names):
        raise ValueError(
            f"{classes} classes cannot be shared evenly by {len(names)} tasks; use a divisor of "
            f"{classes}"
        )
    tasks, task_of = [], torch.arange(classes) // (classes // len(names))
    for k, name in enumerate(names):
        train, validation, test = (Split(x[task_of[y] == k], y[task_of[y] == k]) for x, y in parts)
        tasks.append(Task(name, train, validation, test, task_of == k))
    return tasks


# --- tasks with all classes --------------------------------------------------------------


def permutation(seed: int, task: int) -> Tensor:
    """Where the pixels of a task come from `[784]`; task 0 is unpermuted, as in the paper."""
    if not task:
        return torch.arange(784)
    generator = torch.Generator().manual_seed(1_000_003 * (101 + task) + seed)
    return torch.randperm(784, generator=generator)


def _permuted(arrays: Arrays, seed: int, count: int) -> list[Task]:
    """Tasks share the tensors, and differ in the order of pixels alone."""
    plain = _all_classes("original", arrays)
    tasks = []
    for k in range(count):
        order, parts = permutation(seed, k), (plain.train, plain.validation, plain.test)
        train, validation, test = (replace(part, order=order) for part in parts)
        tasks.append(Task(f"permutation {k}" if k else plain.name, train, validation, test))
    return tasks


def _rotated(arrays: Arrays, seed: int, count: int) -> list[Task]:
    """Tasks turn the images by 0° to 180°, evenly spaced."""
    angles = [180.0 * k / max(1, count - 1) for k in range(count)]
    return [_all_classes(f"turned {angle:.0f}°", arrays, angle) for angle in angles]


def _all_classes(name: str, arrays: Arrays, angle: float = 0.0) -> Task:
    """A task of all images, turned by an angle."""
    count = _validation_count(arrays)
    x, test_x = (_turned(x, angle).flatten(1) for x in (arrays.train_x, arrays.test_x))
    y, test_y = arrays.train_y.long(), arrays.test_y.long()
    validation = Split(x[:count], y[:count])
    return Task(name, Split(x[count:], y[count:]), validation, Split(test_x, test_y))


def _validation_count(arrays: Arrays) -> int:
    return min(VALIDATION, len(arrays.train_x) // 10)


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
_ABOUT = "150 intents by domain, features of a frozen MiniLM"
SCENARIOS["clinc150"] = ScenarioKind(_domains, "clinc150", 10, _ABOUT)
