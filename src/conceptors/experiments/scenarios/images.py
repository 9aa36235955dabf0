"""All scenarios: MNIST and Fashion-MNIST in three forms, split CIFAR-100, and CLINC150."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal.checks import nearest
from conceptors.experiments.scenarios.base import Scenario, Split, Task
from conceptors.experiments.scenarios.data.read import Data, Samples, load
from conceptors.experiments.scenarios.data.sentences import load_encoded


@dataclass(frozen=True)
class ScenarioKind:
    """A scenario that can be built by name: `make(data, seed, count)` returns its tasks."""

    make: Callable[[Data, int, int], list[Task]]
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
    data: Data | None = None,
) -> Scenario:
    """Build a scenario for one seed.

    Args:
        tasks: how many tasks.
        heads: whether each task has its own head (by default on split-cifar100 only).
        limit: use only so many training, validation and test samples, for quick trials.
        data: samples to use instead of the scenario's own.

    Raises:
        ValueError: unknown name or impossible options.
    """
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}{nearest(name, SCENARIOS)}")
    kind = SCENARIOS[name]
    count = kind.tasks if tasks is None else tasks
    if count < 1:
        raise ValueError(f"tasks must be at least 1, got {count}")
    if data is None:
        data = load_encoded(kind.data) if kind.data == "clinc150" else load(kind.data)
    if limit is not None:
        data = data.first(limit)
    sequence = kind.make(data, seed, count)
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


def _disjoint(data: Data, seed: int, count: int) -> list[Task]:
    return _by_class(data.parts, 10, count, "digits")


def _split_cifar(data: Data, seed: int, count: int) -> list[Task]:
    mean = torch.tensor([0.5071, 0.4865, 0.4409])[:, None, None]
    std = torch.tensor([0.2673, 0.2564, 0.2762])[:, None, None]
    return _by_class([((x / 255 - mean) / std, y) for x, y in data.parts], 100, count, "classes")


def _domains(data: Data, seed: int, count: int) -> list[Task]:
    """Intents are numbered domain by domain."""
    tasks = _by_class(data.parts, int(data.parts[0][1].max()) + 1, count, "intents")
    names = data.groups if count == len(data.groups) else [task.name for task in tasks]
    return [replace(task, name=name) for task, name in zip(tasks, names)]


def _by_class(parts: list[Samples], classes: int, count: int, word: str) -> list[Task]:
    """Tasks of equally many classes, which `word` names."""
    size = classes // count
    if size * count != classes:
        raise ValueError(
            f"{classes} classes cannot be shared evenly by {count} tasks; use a divisor of "
            f"{classes}"
        )
    tasks = []
    for k in range(count):
        numbers = ", ".join(map(str, range(k * size, (k + 1) * size)))
        is_member = torch.arange(classes) // size == k
        own = [(x[is_member[y]], y[is_member[y]]) for x, y in parts]
        tasks.append(_task(f"{word} {numbers if size <= 5 else k + 1}", own, classes=is_member))
    return tasks


def _task(
    name: str, parts: Iterable[Samples], classes: Tensor | None = None, order: Tensor | None = None
) -> Task:
    train, validation, test = (Split(x, y, order) for x, y in parts)
    return Task(name, train, validation, test, classes)


# --- tasks with all classes --------------------------------------------------------------


def _permuted(data: Data, seed: int, count: int) -> list[Task]:
    """Tasks share the tensors, and differ in the order of pixels alone, but for the first task."""
    tasks = [_task("original", data.parts)]
    for k in range(1, count):
        generator = torch.Generator().manual_seed(1_000_003 * (101 + k) + seed)
        order = torch.randperm(784, generator=generator)
        tasks.append(_task(f"permutation {k}", data.parts, order=order))
    return tasks


def _rotated(data: Data, seed: int, count: int) -> list[Task]:
    """Tasks turn the images by 0° to 180°, evenly spaced."""
    angles = [180.0 * k / max(1, count - 1) for k in range(count)]
    return [
        _task(f"turned {angle:.0f}°", [(_turned(x, angle), y) for x, y in data.parts])
        for angle in angles
    ]


def _turned(images: Tensor, angle: float) -> Tensor:
    """Images `[n, 784]` of bytes turned about their centre, bilinear."""
    if angle == 0:
        return images
    turn = torch.tensor(angle).deg2rad()
    matrix = torch.tensor([[turn.cos(), -turn.sin(), 0.0], [turn.sin(), turn.cos(), 0.0]])
    parts = []
    for part in images.view(-1, 1, 28, 28).split(10_000):
        matrices = matrix.expand(len(part), 2, 3)
        grid = functional.affine_grid(matrices, list(part.shape), align_corners=False)
        turned = functional.grid_sample(part.float(), grid, align_corners=False)
        parts.append(turned.flatten(1).round().to(torch.uint8))
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
