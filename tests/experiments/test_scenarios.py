"""Scenarios: which samples every task and seed gets, on made-up images."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.scenarios import SCENARIOS, Split, build, union
from experiments.tasks import blobs

IMAGES = "conceptors.experiments.scenarios.images"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{IMAGES}.load", partial(blobs, train=1100, test=200))


def everything(split: Split) -> tuple[Tensor, Tensor]:
    """All inputs and labels."""
    return split.take(torch.arange(len(split)))


@pytest.mark.parametrize("name", ["disjoint-mnist", "disjoint-fashion"])
@pytest.mark.parametrize("tasks", [1, 2, 5, 10])
def test_disjoint_shares_the_classes(name: str, tasks: int) -> None:
    scenario = build(name, 3, tasks=tasks)
    data = blobs(SCENARIOS[name].data, train=1100, test=200)
    assert (len(scenario.tasks), scenario.inputs) == (tasks, (784,))
    count = 0
    for number, task in enumerate(scenario.tasks):
        classes = list(range(number * 10 // tasks, (number + 1) * 10 // tasks))
        for split in (task.train, task.validation, task.test):
            assert sorted(set(everything(split)[1].tolist())) == classes
        assert task.classes is not None
        assert task.classes.nonzero()[:, 0].tolist() == classes
        is_in = torch.isin(data.test_y, torch.tensor(classes))
        assert torch.equal(everything(task.test)[0], data.test_x[is_in].flatten(1).float() / 255)
        count += len(task.train) + len(task.validation)
    assert count == 1100  # nothing lost, nothing twice


def test_class_order_by_seed() -> None:
    orders = []
    for seed in range(3):
        tasks = build("disjoint-mnist", seed, tasks=5, class_order="seed").tasks
        groups = [sorted(set(everything(task.train)[1].tolist())) for task in tasks]
        assert sorted(label for group in groups for label in group) == list(range(10))
        orders.append(str(groups))
    assert len(set(orders)) == 3


def test_validation_is_the_first_images(monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs("mnist", train=1100, test=200)
    for most in (5_000, 30):
        monkeypatch.setattr(f"{IMAGES}.VALIDATION", most)
        count = min(most, 110)  # at most a tenth
        for name in ("permuted-mnist", "rotated-mnist"):
            task = build(name, 0, tasks=2).tasks[0]
            x = data.train_x.flatten(1).float() / 255
            assert torch.equal(everything(task.validation)[0], x[:count])
            assert torch.equal(everything(task.train)[0], x[count:])
        tasks = build("disjoint-mnist", 0).tasks
        labels = torch.cat([everything(task.validation)[1] for task in tasks])
        assert labels.bincount().tolist() == data.train_y[:count].bincount().tolist()


def test_permuted_starts_with_the_original() -> None:
    plain = blobs("mnist", train=1100, test=200).test_x.flatten(1).float() / 255
    views = [
        [everything(task.test)[0] for task in build("permuted-mnist", seed, tasks=tasks).tasks]
        for seed, tasks in ((4, 3), (5, 3), (4, 5))
    ]
    for original, *others in views:
        assert torch.equal(original, plain)
        assert all(torch.equal(x.sort(1).values, plain.sort(1).values) for x in others)
        assert not torch.equal(others[0], others[1])
    assert not torch.equal(views[0][1], views[1][1])
    assert torch.equal(views[0][2], views[2][2])  # whatever the number of tasks


def test_rotated_turns_the_images() -> None:
    scenario = build("rotated-mnist", 0, tasks=3)
    assert [task.name for task in scenario.tasks] == ["turned 0°", "turned 90°", "turned 180°"]
    views = [everything(task.test)[0].reshape(-1, 28, 28) * 255 for task in scenario.tasks]
    plain = blobs("mnist", train=1100, test=200).test_x.float()
    assert torch.equal(views[0].round(), plain)
    torch.testing.assert_close(views[2], plain.flip(1, 2), atol=1.01, rtol=0)
    quarters = [(views[1] - torch.rot90(plain, k, (1, 2))).abs().max() for k in (1, 3)]
    assert float(min(quarters)) < 1.01


@pytest.mark.parametrize("tasks", [10, 20])
def test_split_cifar(tasks: int) -> None:
    scenario = build("split-cifar100", 0, tasks=tasks)
    assert (scenario.heads, scenario.inputs) == (True, (3, 32, 32))
    masks = torch.stack([task.classes for task in scenario.tasks if task.classes is not None])
    assert masks.sum(0).tolist() == [1] * 100
    for task, mask in zip(scenario.tasks, masks):
        x, y = everything(task.train)
        assert bool(mask[y].all())
        assert x.dtype == torch.float32
    assert not build("split-cifar100", 0, tasks=tasks, heads=False).heads


@pytest.mark.parametrize(
    ("name", "order"),
    [
        *(("disjoint-mnist", "fixed"), ("disjoint-mnist", "seed"), ("permuted-mnist", "fixed")),
        *(("rotated-mnist", "fixed"), ("split-cifar100", "fixed")),
    ],
)
def test_the_union_has_all_samples_as_the_tasks_show_them(name: str, order: str) -> None:
    splits = [task.train for task in build(name, 5, tasks=2, class_order=order).tasks]
    x, y = everything(union(splits))
    parts = [everything(split) for split in splits]
    assert torch.equal(x, torch.cat([part[0] for part in parts]))
    assert torch.equal(y, torch.cat([part[1] for part in parts]))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("permutd-mnist", {}, "did you mean 'permuted-mnist'"),
        ("disjoint-mnist", {"class_order": "random"}, "class_order must be"),
        ("disjoint-mnist", {"task": 2}, "no option 'task'; did you mean 'tasks'"),
        ("disjoint-mnist", {"layers": "last"}, "no option 'layers'"),
        ("disjoint-mnist", {"tasks": 3}, "cannot be shared evenly by 3"),
        ("disjoint-mnist", {"tasks": 0}, "at least 1"),
        ("split-cifar100", {"tasks": 7}, "cannot be shared evenly by 7"),
        ("disjoint-mnist", {"tasks": 10, "limit": 9}, "has no training, validation or test"),
    ],
)
def test_bad_requests_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, 0, **options)


@pytest.mark.parametrize("class_order", ["fixed", "seed"])
@pytest.mark.parametrize(("tasks", "limit"), [(10, 100), (20, 200), (100, 200)])
def test_few_images_are_enough_for_many_tasks(tasks: int, limit: int, class_order: str) -> None:
    """Every task has validation images, also of classes that come late in the data."""
    late = blobs("cifar100", train=4000, test=1000)
    order = (late.train_y >= 50).int().argsort(stable=True)
    late = late._replace(train_x=late.train_x[order], train_y=late.train_y[order])
    options: dict[str, Any] = {"tasks": tasks, "limit": limit, "class_order": class_order}
    scenario = build("split-cifar100", 1, arrays=late, **options)
    for split in ("train", "validation", "test"):
        counts = [len(getattr(task, split)) for task in scenario.tasks]
        assert min(counts) >= (1 if tasks == 100 else 2)  # norms need more than one
    total = sum(len(task.train) + len(task.validation) for task in scenario.tasks)
    assert total == limit + limit // 10  # each image once, a tenth more for validation
