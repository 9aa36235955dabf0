"""Scenarios: which samples every task and seed gets, on fake images in place of the data sets."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from conceptors.experiments.scenarios import SCENARIOS, Split, build, union
from experiments.tasks import blobs

IMAGES = "conceptors.experiments.scenarios.images"


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{IMAGES}.load", partial(blobs, train=1100, test=200))


def everything(split: Split, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and labels of one seed."""
    count = split.counts[seed]
    x, y = split.take(torch.arange(count).expand(len(split.counts), -1))
    return x[seed], y[seed]


# --- pixels ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["disjoint-mnist", "permuted-fashion"])
def test_standardised_pixels(name: str) -> None:
    plain, made = build(name, [0], tasks=2), build(name, [0], tasks=2, standardised=True)
    assert "standardised" not in plain.options
    assert made.options["standardised"]
    images = blobs(SCENARIOS[name].data, train=1100, test=200).train_x.double() / 255
    mean, sd = float(images.mean()), float(images.std(correction=0))
    for before, after in zip(plain.tasks, made.tasks):
        for part in ("train", "validation", "test"):
            x, y = everything(getattr(before, part))
            found, labels = everything(getattr(after, part))
            torch.testing.assert_close(found, (x - mean) / sd, rtol=1e-5, atol=1e-5)
            assert torch.equal(y, labels)
    with pytest.raises(ValueError, match=r"standardised pixels are for .*, not for rotated-mnist"):
        build("rotated-mnist", [0], standardised=True)


# --- disjoint ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["disjoint-mnist", "disjoint-fashion"])
@pytest.mark.parametrize("tasks", [1, 2, 5, 10])
def test_disjoint_shares_the_classes(name: str, tasks: int) -> None:
    scenario = build(name, [0, 3], tasks=tasks)
    data = blobs(SCENARIOS[name].data, train=1100, test=200)
    assert len(scenario.tasks) == tasks
    assert scenario.inputs == (784,)
    seen = 0
    for number, task in enumerate(scenario.tasks):
        own = list(range(number * 10 // tasks, (number + 1) * 10 // tasks))
        for split in (task.train, task.validation, task.test):
            assert sorted(set(everything(split)[1].tolist())) == own
        assert task.classes is not None
        assert task.classes[1].nonzero()[:, 0].tolist() == own
        x, y = everything(task.test, seed=1)
        wanted = torch.isin(data.test_y, torch.tensor(own))
        assert torch.equal(x, data.test_x[wanted].flatten(1).float() / 255)
        assert torch.equal(y, data.test_y[wanted].long())
        seen += task.train.counts[0] + task.validation.counts[0]
    assert seen == 1100  # nothing lost, nothing twice


@pytest.mark.parametrize("tasks", [3, 4, 11, 0, -1])
def test_an_impossible_number_of_tasks_is_refused(tasks: int) -> None:
    with pytest.raises(ValueError, match=r"cannot be shared evenly|at least 1"):
        build("disjoint-mnist", [0], tasks=tasks)


def test_class_order_by_seed() -> None:
    scenario = build("disjoint-mnist", [0, 1, 2], tasks=5, class_order="seed")
    orders = []
    for i in range(3):
        groups = [sorted(set(everything(t.train, i)[1].tolist())) for t in scenario.tasks]
        assert sorted(c for g in groups for c in g) == list(range(10))
        orders.append(str(groups))
    assert len(set(orders)) == 3
    alone = build("disjoint-mnist", [2], tasks=5, class_order="seed")
    groups = [sorted(set(everything(t.train)[1].tolist())) for t in alone.tasks]
    assert str(groups) == orders[2]  # whatever seeds are stacked with it


def test_validation_is_the_first_images(monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs("mnist", train=1100, test=200)
    for held in (5_000, 30):  # at most a tenth, and at most VALIDATION
        monkeypatch.setattr(f"{IMAGES}.VALIDATION", held)
        count = min(held, 110)
        for name in ("permuted-mnist", "rotated-mnist"):
            task = build(name, [0], tasks=2).tasks[0]
            first = data.train_x[:count].flatten(1).float() / 255
            rest = data.train_x[count:].flatten(1).float() / 255
            assert torch.equal(everything(task.validation)[0], first)
            assert torch.equal(everything(task.train)[0], rest)
            assert torch.equal(everything(task.train)[1], data.train_y[count:].long())
        tasks = build("disjoint-mnist", [0]).tasks
        labels = torch.cat([everything(t.validation)[1] for t in tasks])
        assert labels.bincount().tolist() == data.train_y[:count].bincount().tolist()


# --- permuted and rotated ----------------------------------------------------------------


def test_permuted_starts_with_the_original() -> None:
    scenario = build("permuted-mnist", [4, 5], tasks=3)
    data = blobs("mnist", train=1100, test=200)
    plain = data.test_x.flatten(1).float() / 255
    views = [[everything(t.test, i)[0] for t in scenario.tasks] for i in range(2)]
    for own in views:
        assert torch.equal(own[0], plain)
        for changed in own[1:]:
            assert not torch.equal(changed, plain)
            assert torch.equal(changed.sort(1).values, plain.sort(1).values)  # same pixels
        assert not torch.equal(own[1], own[2])
    assert not torch.equal(views[0][1], views[1][1])


def test_permutations_depend_on_seed_and_task_alone() -> None:
    one = build("permuted-mnist", [7], tasks=3)
    many = build("permuted-mnist", [1, 7, 30], tasks=5)
    for alone, stacked in zip(one.tasks, many.tasks):
        for part in ("train", "validation", "test"):
            ours = everything(getattr(alone, part))
            theirs = everything(getattr(stacked, part), seed=1)
            assert torch.equal(ours[0], theirs[0])
            assert torch.equal(ours[1], theirs[1])


def test_rotated_turns_the_images() -> None:
    data = blobs("mnist", train=1100, test=200)
    scenario = build("rotated-mnist", [0], tasks=3)
    assert [t.name for t in scenario.tasks] == ["turned 0°", "turned 90°", "turned 180°"]
    pictures = [everything(t.test)[0].reshape(-1, 28, 28) * 255 for t in scenario.tasks]
    plain = data.test_x.float()
    assert torch.equal(pictures[0].round(), plain)
    torch.testing.assert_close(pictures[2], plain.flip(1, 2), atol=1.01, rtol=0)
    quarter = min((pictures[1] - torch.rot90(plain, k, (1, 2))).abs().max() for k in (1, 3))
    assert float(quarter) < 1.01
    assert len(build("rotated-fashion", [0], tasks=1).tasks) == 1


def test_degrees_from_a_task_to_the_next() -> None:
    scenario = build("rotated-mnist", [0], tasks=3, degrees=90)
    assert [t.name for t in scenario.tasks] == ["turned 0°", "turned 90°", "turned 180°"]
    evenly = build("rotated-mnist", [0], tasks=3)
    for ours, theirs in zip(scenario.tasks, evenly.tasks):
        assert torch.equal(everything(ours.train)[0], everything(theirs.train)[0])
    assert scenario.options["degrees"] == 90
    assert "degrees" not in evenly.options
    small = build("rotated-fashion", [0], tasks=2, degrees=2.5).tasks
    assert small[1].name == "turned 2.5°"


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_share_of_the_pixels_is_shuffled(share: float) -> None:
    scenario = build("permuted-mnist", [4, 5], tasks=3, shuffled=share)
    count = round(784 * share)
    moved = []
    for k, task in enumerate(scenario.tasks):
        orders = task.train.permutations
        assert orders is not None
        assert torch.equal(orders.sort(-1).values, torch.arange(784).expand(2, 1, 784))
        moved.append((orders != torch.arange(784)).flatten(1))
        # a few of the shuffled pixels land where they were
        assert all(count - 10 <= n <= count for n in moved[k].sum(-1).tolist()) or k == 0
    assert not moved[0].any()
    assert not torch.equal(moved[1], moved[2])  # other pixels in every task
    assert not torch.equal(moved[1][0], moved[1][1])  # and for every seed


def test_shuffling_all_pixels_is_the_default() -> None:
    ours = build("permuted-mnist", [4], tasks=2, shuffled=1.0).tasks[1]
    theirs = build("permuted-mnist", [4], tasks=2).tasks[1]
    assert torch.equal(everything(ours.test)[0], everything(theirs.test)[0])


# --- colour images -----------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [10, 20])
def test_split_cifar(tasks: int) -> None:
    scenario = build("split-cifar100", [0], tasks=tasks)
    assert scenario.heads
    assert scenario.inputs == (3, 32, 32)
    masks = torch.stack([t.classes[0] for t in scenario.tasks if t.classes is not None])
    assert masks.sum(0).tolist() == [1] * 100
    for task, mask in zip(scenario.tasks, masks):
        x, y = everything(task.train)
        assert bool(mask[y].all())
        assert x.shape[1:] == (3, 32, 32)
        assert x.dtype == torch.float32
    assert not build("split-cifar100", [0], tasks=tasks, heads=False).heads
    with pytest.raises(ValueError, match="cannot be shared evenly by 7"):
        build("split-cifar100", [0], tasks=7)


# --- everything together -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("disjoint-mnist", "fixed"),
        ("disjoint-mnist", "seed"),
        ("permuted-mnist", "fixed"),
        ("rotated-mnist", "fixed"),
        ("split-cifar100", "fixed"),
    ],
)
def test_the_union_has_all_samples_as_the_tasks_show_them(name: str, order: str) -> None:
    seeds = [0] if name.startswith("split") else [0, 5]
    scenario = build(name, seeds, tasks=2 if name != "split-cifar100" else 10, class_order=order)
    splits = [t.train for t in scenario.tasks]
    joined = union(splits)
    for i in range(len(seeds)):
        wanted = [everything(s, i) for s in splits]
        x, y = everything(joined, i)
        assert torch.equal(x, torch.cat([w[0] for w in wanted]))
        assert torch.equal(y, torch.cat([w[1] for w in wanted]))


def test_bad_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'permuted-mnist'"):
        build("permutd-mnist", [0])
    with pytest.raises(ValueError, match="at least one seed"):
        build("disjoint-mnist", [])
    with pytest.raises(ValueError, match="class_order must be"):
        build("disjoint-mnist", [0], class_order="random")
    with pytest.raises(ValueError, match="has no training, validation or test samples"):
        build("disjoint-mnist", [0], tasks=10, limit=9)
    with pytest.raises(ValueError, match="degrees=10 is for rotated-mnist and rotated-fashion"):
        build("permuted-mnist", [0], degrees=10)
    with pytest.raises(ValueError, match=r"shuffled=0.1 is for permuted-mnist"):
        build("disjoint-mnist", [0], shuffled=0.1)
    for share in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"shuffled must be a share of the pixels in \(0, 1"):
            build("permuted-mnist", [0], shuffled=share)
    for angle in (-1.0, 361.0, float("nan")):
        with pytest.raises(ValueError, match="degrees from a task to the next must be in"):
            build("rotated-mnist", [0], degrees=angle)


def test_a_limit_keeps_the_first_images() -> None:
    task = build("permuted-mnist", [0], tasks=1, limit=100).tasks[0]
    assert task.train.counts == (99,)  # a tenth more for validation
    assert task.validation.counts == (11,)
    assert task.test.counts == (100,)


@pytest.mark.parametrize("class_order", ["fixed", "seed"])
@pytest.mark.parametrize(("tasks", "limit"), [(10, 100), (20, 200), (100, 200)])
def test_few_images_are_enough_for_many_tasks(tasks: int, limit: int, class_order: str) -> None:
    """No task goes without: neither of classes that come late, nor of validation images."""
    late = blobs("cifar100", train=4000, test=1000)
    first, rest = late.train_y < 50, late.train_y >= 50
    late = late._replace(
        train_x=torch.cat([late.train_x[first], late.train_x[rest]]),
        train_y=torch.cat([late.train_y[first], late.train_y[rest]]),
    )
    made = build(
        *("split-cifar100", [0, 1]),
        tasks=tasks,
        limit=limit,
        class_order=class_order,
        arrays=late,
    )
    for split in ("train", "validation", "test"):
        counts = [getattr(task, split).counts for task in made.tasks]
        assert min(map(min, counts)) >= (1 if tasks == 100 else 2)  # norms need more than one
    total = sum(task.train.counts[0] + task.validation.counts[0] for task in made.tasks)
    assert total == limit + limit // 10  # each image once
    assert sum(task.test.counts[0] for task in made.tasks) == limit


def test_whole_data_sets_are_parted_as_ever() -> None:
    task = build("disjoint-mnist", [0], tasks=1).tasks[0]
    arrays = blobs("mnist", train=1100, test=200)
    held = len(arrays.train_y) // 10
    assert torch.equal(everything(task.validation)[1], arrays.train_y[:held].long())
    assert torch.equal(everything(task.train)[1], arrays.train_y[held:].long())


def test_scenarios_say_whether_seeds_can_be_stacked() -> None:
    assert build("permuted-mnist", [0], tasks=2).stackable
    assert not build("disjoint-mnist", [0], class_order="seed").stackable  # unequal sizes
    assert build("split-cifar100", [0]).stackable
