"""Disjoint, permuted and rotated MNIST (and Fashion-MNIST), and split CIFAR-100."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from conceptors._internal.suggest import nearest
from conceptors.experiments.scenarios.base import Scenario, Split, Task
from conceptors.experiments.scenarios.data import Arrays, load
from conceptors.experiments.scenarios.data.encoded import Encoded, Samples

VALIDATION = 5_000  # the first training images, as in the paper's own code


@dataclass(frozen=True)
class ScenarioKind:
    """A scenario that can be built by name."""

    make: Callable[[Any, list[int], dict[str, Any]], Scenario]
    data: str
    tasks: int
    about: str
    encoded: Callable[..., Encoded] | None = None  # loads features of an encoder instead
    alikeness: str = ""  # its option that says how much tasks differ from each other

    def stackable(self, class_order: str) -> bool:
        """Whether seeds can be learned at once; not if their tasks are of different sizes."""
        return class_order == "fixed"


def build(
    name: str,
    seeds: list[int],
    *,
    tasks: int | None = None,
    heads: bool | None = None,
    class_order: str = "fixed",
    limit: int | None = None,
    layers: str = "all",
    degrees: float | None = None,
    shuffled: float | None = None,
    standardised: bool = False,
    progress: bool = True,
    arrays: Arrays | Encoded | None = None,
) -> Scenario:
    """A scenario for some seeds.

    Args:
        tasks: how many, by default the scenario's own number.
        heads: one head per task (split-cifar100, by default yes; clinc150, by default no).
        class_order: "fixed" (0, 1, 2, ...) or "seed" (shuffled by each seed).
        limit: use only so many samples of each set, for quick trials.
        layers: features of "all" layers of the encoder, or the "last" (clinc150).
        degrees: from each task to the next (rotated), by default so that the last is at 180°.
        shuffled: share of the pixels that every task shuffles among themselves (permuted), by
            default all.
        standardised: pixels of mean 0 and variance 1 over all training images, not in [0, 1]
            (disjoint and permuted).
        progress: show downloads.
        arrays: data of that form to use instead of the scenario's own.

    Raises:
        ValueError: unknown name or impossible options.
    """
    if name not in SCENARIOS:
        raise ValueError(f"unknown scenario {name!r}{nearest(name, SCENARIOS)}")
    if not seeds:
        raise ValueError("at least one seed is needed")
    kind = SCENARIOS[name]
    count = kind.tasks if tasks is None else tasks
    if count < 1:
        raise ValueError(f"tasks must be at least 1, got {count}")
    if class_order not in ("fixed", "seed"):
        raise ValueError(f"class_order must be 'fixed' or 'seed', got {class_order!r}")
    if layers not in ("all", "last") or (layers != "all" and not kind.encoded):
        known = "'all' or 'last'" if kind.encoded else "'all' for inputs that are no features"
        raise ValueError(f"layers must be {known}, got {layers!r}")
    unlike = {"degrees": degrees, "shuffled": shuffled}
    alike = {key: value for key, value in unlike.items() if value is not None}
    for key, value in alike.items():
        if key != kind.alikeness:
            some = [other for other, its in SCENARIOS.items() if its.alikeness == key]
            raise ValueError(f"{key}={value:g} is for {' and '.join(some)}, not for {name}")
    if arrays is None:
        arrays = (kind.encoded or load)(kind.data, progress=progress)
    if limit is not None:
        arrays = arrays.first(limit)
    if standardised:
        arrays = _standardised(arrays, name)
    options: dict[str, Any] = {
        "tasks": count,
        "heads": heads,
        "class_order": class_order,
        "limit": limit,
    }
    options |= {"layers": layers} if kind.encoded else {}
    options |= alike | ({"standardised": True} if standardised else {})
    made = kind.make(arrays, seeds, {"name": name, **options})
    for task in made.tasks:
        if not min(task.train.counts + task.validation.counts + task.test.counts):
            raise ValueError(
                f"task {task.name!r} has no training, validation or test samples with "
                f"limit={limit}; use more samples or fewer tasks"
            )
    return replace(made, stackable=kind.stackable(class_order))


def _generator(seed: int, purpose: int) -> torch.Generator:
    """Random numbers of one seed for one purpose, whatever else is drawn."""
    return torch.Generator().manual_seed(1_000_003 * (purpose + 1) + seed)


def _standardised(arrays: Any, name: str) -> Arrays:
    """Bytes as floats of mean 0 and variance 1 over all pixels of the training images."""
    able = [other for other, kind in SCENARIOS.items() if kind.make in (_disjoint, _permuted)]
    if name not in able:
        raise ValueError(f"standardised pixels are for {', '.join(able)}, not for {name}")
    counts = arrays.train_x.flatten().bincount(minlength=256).double()
    grey = torch.arange(256, dtype=torch.float64) / 255
    mean = (counts * grey).sum() / counts.sum()
    sd = ((counts * (grey - mean).square()).sum() / counts.sum()).sqrt()
    values = ((grey - mean) / sd).float()
    made: Arrays = arrays._replace(
        train_x=values[arrays.train_x.int()], test_x=values[arrays.test_x.int()]
    )
    return made


def _held_out(arrays: Arrays) -> int:
    return min(VALIDATION, len(arrays.train_x) // 10)


def _disjoint(arrays: Arrays, seeds: list[int], options: dict[str, Any]) -> Scenario:
    count, classes = options["tasks"], 10
    if classes % count:
        raise ValueError(f"10 classes cannot be shared evenly by {count} tasks; use 1, 2, 5 or 10")
    groups = class_orders(classes, seeds, options).chunk(count, 1)
    flat = arrays._replace(train_x=arrays.train_x.flatten(1), test_x=arrays.test_x.flatten(1))
    tasks = by_class(*_parted(flat, groups), groups, _named(groups, "digits"))
    name, image = options["name"], (1, 28, 28)
    return Scenario(name, tasks, seeds, classes, (784,), False, options, image=image)


def _split_cifar(arrays: Arrays, seeds: list[int], options: dict[str, Any]) -> Scenario:
    count, classes = options["tasks"], 100
    if classes % count:
        raise ValueError(f"100 classes cannot be shared evenly by {count} tasks; use 10 or 20")
    mean = torch.tensor([0.5071, 0.4865, 0.4409])[:, None, None]
    std = torch.tensor([0.2673, 0.2564, 0.2762])[:, None, None]
    scaled = arrays._replace(
        train_x=(arrays.train_x / 255 - mean) / std, test_x=(arrays.test_x / 255 - mean) / std
    )
    groups = class_orders(classes, seeds, options).chunk(count, 1)
    tasks = by_class(*_parted(scaled, groups), groups, _named(groups, "classes"))
    heads, image = options["heads"] is not False, (3, 32, 32)
    return Scenario(options["name"], tasks, seeds, classes, image, heads, options, image=image)


def by_class(
    train: Samples, held: Samples, test: Samples, groups: tuple[Tensor, ...], names: list[str]
) -> list[Task]:
    """A task for each group of classes `[seeds, k]`, of samples (inputs, labels)."""
    classes = sum(group.shape[1] for group in groups)
    tasks = []
    for number, group in enumerate(groups):

        def having(labels: Tensor, group: Tensor = group) -> list[Tensor]:
            return [torch.isin(labels, own).nonzero()[:, 0] for own in group]

        mask = torch.zeros(len(group), classes, dtype=torch.bool).scatter_(1, group, True)
        own, checked, tested = (Split.of(x, y, having(y)) for x, y in (train, held, test))
        tasks.append(Task(names[number], own, checked, tested, mask))
    return tasks


def _parted(arrays: Arrays, groups: tuple[Tensor, ...]) -> tuple[Samples, Samples, Samples]:
    """Training, validation and test images with labels, for a task of each group of classes."""
    held = _held_out(arrays)
    x, y = arrays.train_x, arrays.train_y.long()
    test = (arrays.test_x, arrays.test_y.long())
    bare = [own for own in torch.cat(groups) if int(torch.isin(y[:held], own).sum()) < 2]
    if not bare:
        return (x[held:], y[held:]), (x[:held], y[:held]), test
    chosen = torch.arange(len(y)) < held
    for classes in bare:  # few images: tasks get two for validation, as norms need more than one
        own = torch.isin(y, classes).nonzero()[:, 0]
        chosen[own[: max(1, min(2, len(own) // 2))]] = True
    return (x[~chosen], y[~chosen]), (x[chosen], y[chosen]), test


def _named(groups: tuple[Tensor, ...], what: str) -> list[str]:
    """Names of tasks: few classes are listed."""
    few = [", ".join(str(int(c)) for c in group[0]) for group in groups]
    most = max(group.shape[1] for group in groups)
    return [f"{what} {few[k] if most <= 5 else k + 1}" for k in range(len(groups))]


def class_orders(classes: int, seeds: list[int], options: dict[str, Any]) -> Tensor:
    if options["class_order"] == "fixed":
        return torch.arange(classes).expand(len(seeds), classes)
    return torch.stack([torch.randperm(classes, generator=_generator(s, 1)) for s in seeds])


def permutation(seed: int, task: int, shuffled: float | None = None) -> Tensor:
    """Where the pixels of a task, numbered from 0, come from `[784]`; `shuffled` as in `build`.

    Task 0 is unpermuted, as in the paper.
    """
    if not task:
        return torch.arange(784)
    count = 784 if shuffled is None else _shuffled_pixels(shuffled)
    return _order(_generator(seed, 100 + task), count)


def _permuted(arrays: Arrays, seeds: list[int], options: dict[str, Any]) -> Scenario:
    share = options.get("shuffled")
    if share is not None:
        _shuffled_pixels(share)  # refused also where nothing is shuffled
    orders = torch.stack(
        [
            torch.stack([permutation(seed, k, share) for k in range(options["tasks"])])
            for seed in seeds
        ]
    )  # [seeds, tasks, 784]
    held = _held_out(arrays)
    x, y = arrays.train_x.flatten(1), arrays.train_y.long()
    test_x, test_y = arrays.test_x.flatten(1), arrays.test_y.long()
    # the same tensors for every task: joint training sees that only the order differs
    parts = [(x[held:], y[held:]), (x[:held], y[:held]), (test_x, test_y)]
    tasks = []
    for k in range(options["tasks"]):
        train, validation, test = (
            Split.of(images, labels, _all_members(images, seeds), orders[:, k : k + 1])
            for images, labels in parts
        )
        name = "original" if k == 0 else f"permutation {k}"
        tasks.append(Task(name, train, validation, test))
    return Scenario(options["name"], tasks, seeds, 10, (784,), False, options)


def _shuffled_pixels(share: float) -> int:
    if not 0 < share <= 1:
        raise ValueError(f"shuffled must be a share of the pixels in (0, 1], got {share}")
    return round(784 * share)


def _order(generator: torch.Generator, count: int) -> Tensor:
    """All pixels shuffled `[784]`, or so many of them among themselves."""
    drawn = torch.randperm(784, generator=generator)
    if count == 784:
        return drawn
    order, some = torch.arange(784), drawn[:count]
    order[some] = some[torch.randperm(count, generator=generator)]
    return order


def _rotated(arrays: Arrays, seeds: list[int], options: dict[str, Any]) -> Scenario:
    """Tasks turn the images by 0° to 180°, evenly spaced, or by so many degrees each."""
    held, count = _held_out(arrays), options["tasks"]
    apart = options.get("degrees")
    if apart is not None and not 0 <= apart <= 360:
        raise ValueError(f"degrees from a task to the next must be in [0, 360], got {apart}")
    y, test_y = arrays.train_y.long(), arrays.test_y.long()
    tasks = []
    for k in range(count):
        angle = 180.0 * k / max(1, count - 1) if apart is None else apart * k
        x = _turned(arrays.train_x, angle).flatten(1)
        test_x = _turned(arrays.test_x, angle).flatten(1)
        parts = [(x[held:], y[held:]), (x[:held], y[:held]), (test_x, test_y)]
        train, validation, test = (Split.of(i, j, _all_members(i, seeds)) for i, j in parts)
        tasks.append(Task(_turned_by(angle, apart), train, validation, test))
    name, image = options["name"], (1, 28, 28)
    return Scenario(name, tasks, seeds, 10, (784,), False, options, image=image)


def _turned_by(angle: float, apart: float | None) -> str:
    """The name of a task; steps of less than a degree are told apart."""
    return f"turned {angle:.0f}°" if apart is None else f"turned {angle:g}°"


def _turned(images: Tensor, angle: float) -> Tensor:
    """Images `[n, 28, 28]` of bytes turned about their centre, bilinear."""
    if angle == 0:
        return images
    turn = torch.tensor(angle).deg2rad()
    matrix = torch.tensor([[turn.cos(), -turn.sin(), 0.0], [turn.sin(), turn.cos(), 0.0]])
    found = []
    for part in images.split(10_000):
        grid = functional.affine_grid(
            matrix.expand(len(part), 2, 3), [len(part), 1, 28, 28], align_corners=False
        )
        turned = functional.grid_sample(part[:, None].float(), grid, align_corners=False)
        found.append(turned[:, 0].round().to(torch.uint8))
    return torch.cat(found)


def _all_members(images: Tensor, seeds: list[int]) -> list[Tensor]:
    return [torch.arange(len(images)) for _ in seeds]


SCENARIOS = {
    "disjoint-mnist": ScenarioKind(
        _disjoint, "mnist", 2, "ten digits in groups, one ten-way output"
    ),
    "permuted-mnist": ScenarioKind(
        _permuted,
        "mnist",
        10,
        "all digits, pixels shuffled in every task",
        alikeness="shuffled",
    ),
    "rotated-mnist": ScenarioKind(
        _rotated,
        "mnist",
        10,
        "all digits, turned further in every task",
        alikeness="degrees",
    ),
    "disjoint-fashion": ScenarioKind(_disjoint, "fashion-mnist", 2, "ten garments in groups"),
    "permuted-fashion": ScenarioKind(
        _permuted,
        "fashion-mnist",
        10,
        "all garments, pixels shuffled",
        alikeness="shuffled",
    ),
    "rotated-fashion": ScenarioKind(
        _rotated, "fashion-mnist", 10, "all garments, turned", alikeness="degrees"
    ),
    "split-cifar100": ScenarioKind(
        _split_cifar, "cifar100", 10, "a hundred classes in groups, heads"
    ),
}
