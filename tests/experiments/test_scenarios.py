"""Scenarios: which samples every task and seed gets, on made-up images."""

from functools import partial

import pytest
import torch
from torch import Tensor

from conceptors.experiments.scenarios.base import Split, union
from conceptors.experiments.scenarios.data.read import Data
from conceptors.experiments.scenarios.images import SCENARIOS, build
from experiments.tasks import blobs

IMAGES = "conceptors.experiments.scenarios.images"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{IMAGES}.load", partial(blobs, train=1100, test=200))


def everything(split: Split) -> tuple[Tensor, Tensor]:
    """All inputs and labels."""
    return split.take(torch.arange(len(split)))


@pytest.mark.parametrize(
    ("name", "tasks"), [("disjoint-mnist", 1), ("disjoint-fashion", 5), ("split-cifar100", 20)]
)
def test_tasks_share_the_classes(name: str, tasks: int) -> None:
    scenario = build(name, 3, tasks=tasks)
    masks = torch.stack([task.classes for task in scenario.tasks if task.classes is not None])
    assert bool((masks.sum(0) == 1).all())
    assert (len(masks) == tasks, scenario.classes) == (True, masks.shape[1])
    assert torch.equal(masks.int().argmax(0), torch.arange(len(masks[0])) * tasks // len(masks[0]))
    for task, mask in zip(scenario.tasks, masks):
        for split in (task.train, task.validation, task.test):
            x, y = everything(split)
            assert bool(mask[y].all())
            assert (x.dtype, tuple(x.shape[1:])) == (torch.float32, scenario.inputs)
    assert sum(len(task.train) + len(task.validation) for task in scenario.tasks) == 1100
    assert scenario.heads == (name == "split-cifar100")
    assert build(name, 3, tasks=tasks, heads=not scenario.heads).heads != scenario.heads


def test_each_part_of_the_data_is_a_part_of_the_tasks() -> None:
    parts = blobs("mnist", train=1100, test=200).parts
    task, twins = build("rotated-mnist", 0, tasks=2).tasks[0], build("disjoint-mnist", 0).tasks
    for name, (x, y) in zip(("train", "validation", "test"), parts):
        assert torch.equal(everything(getattr(task, name))[0], x.float() / 255)
        labels = [everything(getattr(twin, name))[1] for twin in twins]
        assert torch.equal(torch.cat(labels).bincount(), y.bincount())


def test_permuted_starts_with_the_original() -> None:
    plain = blobs("mnist", train=1100, test=200).parts[2][0].float() / 255
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
    plain = blobs("mnist", train=1100, test=200).parts[2][0].view(-1, 28, 28).float()
    assert torch.equal(views[0].round(), plain)
    torch.testing.assert_close(views[2], plain.flip(1, 2), atol=1.01, rtol=0)
    quarters = [(views[1] - torch.rot90(plain, k, (1, 2))).abs().max() for k in (1, 3)]
    assert float(min(quarters)) < 1.01


@pytest.mark.parametrize("name", sorted(set(SCENARIOS) - {"clinc150"}))
def test_the_union_has_all_samples_as_the_tasks_show_them(name: str) -> None:
    splits = [task.train for task in build(name, 5, tasks=2).tasks]
    parts = [everything(split) for split in splits]
    for whole, pieces in zip(everything(union(splits)), zip(*parts)):
        assert torch.equal(whole, torch.cat(pieces))


@pytest.mark.parametrize("tasks", [10, 100])
def test_few_images_are_enough_for_many_tasks(tasks: int) -> None:
    """Every task has samples of all kinds, also of classes that come late in the data."""
    sorted_by_class = torch.zeros(1000, 3, 1, 1), torch.arange(1000) // 10
    scenario = build("split-cifar100", 1, data=Data([sorted_by_class] * 3), tasks=tasks, limit=200)
    for split in ("train", "validation", "test"):
        assert [len(getattr(task, split)) for task in scenario.tasks] == [200 // tasks] * tasks


def test_a_limit_takes_the_first_samples_of_a_training_set() -> None:
    """And a tenth more for validation, so that results stay repeatable."""
    x, y = torch.arange(100), torch.arange(100) % 2
    data = Data([(x[30:], y[30:]), (x[:30], y[:30]), (x, y)], is_cut=True).first(40)
    assert [part.tolist() for part, _ in data.parts] == [[*range(4, 44)], [*range(4)], [*range(40)]]
    assert torch.equal(data.parts[0][1], y[4:44])
