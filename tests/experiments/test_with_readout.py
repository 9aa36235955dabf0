"""A body under conceptors with a readout after it: classes of all tasks, told apart by one head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from conceptors import Auto, Readout
from conceptors.algebra.targets import CLAIMED
from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.runner import Experiment, run
from conceptors.experiments.scenarios import build
from experiments.learners import CPU, learner, narrow
from experiments.tasks import blobs

TINY: dict[str, Any] = {"hidden": "20", "steps": 60, "batch": 16, "check_every": 20}


def disjoint(
    method: str, seeds: list[int], *, heads: bool = False, tasks: int = 5, **settings: Any
) -> Any:
    """A learner of five tasks of two classes each, or of as many as are asked for."""
    kind = METHODS[method]
    scenario = replace(build("disjoint-mnist", seeds, tasks=tasks, arrays=blobs()), heads=heads)
    return kind(scenario, parse_settings(kind.settings_type, {**TINY, **settings}), CPU, quiet)


def taught(found: Any, tasks: int) -> Any:
    for number in range(tasks):
        found.learn(number)
    return found


def images(found: Any, number: int) -> Tensor:
    """Some test images of a task."""
    places = torch.arange(12).expand(len(found.seeds), -1)
    x: Tensor = found.scenario.tasks[number].test.take(places)[0]
    return x


def test_one_head_for_disjoint_tasks() -> None:
    plain = taught(disjoint("sgd", [0, 1]), 5).test().mean()
    ours = taught(disjoint("cab-readout", [0, 1], lift=100, norms="first"), 5).test().mean()
    assert plain < 40
    assert ours > 90


def test_with_nothing_chosen() -> None:
    """All layers are read, those behind the first at random only where they are few."""
    found = disjoint("shield-readout", [0, 1], hidden="20,30", lift=60)
    assert found.features(images(found, 0)).shape[-1] == 784 + 50
    assert [readout.lift.out_features for readout in found.readouts] == [120, 120]
    wide = disjoint("shield-readout", [0], hidden="20,30", lift=40)
    assert wide.readouts[0].lift.parts[1].out_features == 50  # as they are
    taught(found, 5)
    assert found.shield.conceptors() == {}  # nothing moves after the first task
    assert found.test().mean() > 90


@pytest.mark.parametrize("heads", [True, False])
def test_with_nothing_chosen_a_body_is_fixed_where_tasks_share_a_head(heads: bool) -> None:
    found = taught(disjoint("shield-readout", [0], hidden="20,30", heads=heads), 1)
    before = [p.detach().clone() for p in found.model.parameters()]
    found.learn(1)
    body = list(zip(found.model.parameters(), before))[:4]
    assert [torch.equal(p, b) for p, b in body] == [not heads] * 4
    assert list(found.shield.conceptors()) == (["layers.0", "layers.1"] if heads else [])
    assert found.protection() == {"aperture": Auto(CLAIMED)}  # as `Shield(model)` has it


def test_with_nothing_chosen_a_body_learns_other_inputs_of_the_same_classes() -> None:
    kind = METHODS["shield-readout"]
    scenario = build("permuted-mnist", [0], tasks=2, arrays=blobs())
    found = taught(kind(scenario, parse_settings(kind.settings_type, TINY), CPU, quiet), 1)
    before = found.model.layers[0].weight.detach().clone()
    found.learn(1)
    assert not torch.equal(found.model.layers[0].weight, before)


@pytest.mark.parametrize("lift", [0, 50])
def test_without_training_it_is_a_readout_of_fixed_features(lift: int) -> None:
    """With a rate of 0 no feature drifts: sums over tasks are those of all samples at once."""
    found = taught(disjoint("cab-readout", [4], lift=lift, rate=0.0, regularization="0.01"), 5)
    plain = Readout(20, lift, regularization=0.01, seed=15_485_863 + 4)
    for task in found.scenario.tasks:
        x, y = task.train.take(torch.arange(task.train.counts[0])[None])
        plain.learn(torch.relu(found.model.layers[0](x.flatten(2)))[0], y[0])
    x = images(found, 2)
    wanted = plain(torch.relu(found.model.layers[0](x.flatten(2)))[0])
    torch.testing.assert_close(found.outputs(x, 2)[0], wanted, rtol=1e-3, atol=1e-3)


def test_a_task_trains_the_outputs_of_its_own_classes() -> None:
    found = disjoint("cab-readout", [0, 1], lift=20)
    head = found.model.layers[-1]
    before = head.weight.detach().clone()
    found.learn(0)
    classes = found.scenario.tasks[0].classes
    moved = (head.weight != before).any(2)
    assert torch.equal(moved, classes)
    assert list(found.shield.conceptors()) == ["layers.0"]  # the last layer is not protected


def test_validation_while_learning_is_of_the_network() -> None:
    """The readout has not seen the task yet; patience looks at this loss."""
    found = disjoint("cab-readout", [0, 1], lift=20, patience=2, rate_factor=3.0)
    for number in range(2):
        for history in found.learn(number):
            assert history["validation"][-1] > 90
    assert not found.diverged


def test_classes_never_seen_are_never_said() -> None:
    found = taught(disjoint("cab-readout", [0, 1], lift=20), 2)
    seen = found.scenario.tasks[0].classes | found.scenario.tasks[1].classes
    scores = found.outputs(images(found, 4), 4)
    assert torch.equal((scores > -torch.inf).all(1), seen)
    assert not bool(scores.isnan().any())
    _, loss = found.evaluate(found.scenario.tasks[4].test, 4)
    assert bool(loss.isfinite().all())
    assert bool((disjoint("cab-readout", [0]).test() <= 100).all())  # before any task


@pytest.mark.parametrize("scores", ["regression", "likelihood"])
def test_told_the_head_only_its_classes_count(scores: str) -> None:
    found = taught(disjoint("cab-readout", [0, 1], heads=True, lift=100, scores=scores), 5)
    for number, task in enumerate(found.scenario.tasks):
        x = images(found, number)
        said = found.masked(found.outputs(x, number), number).argmax(-1)
        assert bool(task.classes.gather(1, said).all())
    assert float(found.test().mean()) > 90


def test_all_classes_in_every_task() -> None:
    """Tasks that name no classes, as permuted ones do not, train all outputs."""
    found = learner("cab-readout", [0, 1], hidden="30", steps=200, lift=50)
    assert found.trained_classes(1) is None
    assert float(taught(found, 2).test().mean()) > 80


def test_seeds_that_diverged_learn_nothing() -> None:
    found = disjoint("cab-readout", [0, 1], lift=20)
    found.diverged[1] = "task 1 of 5"
    taught(found, 2)
    assert found.readouts[0].n_samples > 0
    assert found.readouts[1].n_samples == 0
    assert found.test()[0, :2].mean() > 80


def test_of_a_task_of_one_class_nothing_is_known() -> None:
    reusing: dict[str, Any] = {"lift": 20, "reuse": True, "claim_once": True}
    found = taught(disjoint("cab-readout", [0, 1], tasks=10, **reusing), 2)
    assert found.extras[0]["known"] == [0.0]


def test_colour_images_with_one_head() -> None:
    scores = {}
    settings: dict[str, dict[str, Any]] = {
        "sgd": {},
        "cab-readout": {"aperture": 4.0, "lift": 200},
    }
    for method, own in settings.items():
        found = narrow(
            method, [0, 1], heads=False, train=1100, norms="first", steps=60, batch=32, **own
        )
        scores[method] = float(taught(found, 2).test().mean())
    assert scores["cab-readout"] > scores["sgd"] + 10


@torch.no_grad()
def test_all_layers_are_read_side_by_side() -> None:
    """Maps as means over cells; what enters fully connected layers as it is."""
    found = narrow("cab-readout", [0, 1], heads=False, norms="first", reads="all", grid=2, lift=0)
    model = found.model.eval()
    x = images(found, 0)
    wanted = []
    for i, layer in enumerate((model.conv1, model.conv2, model.conv3)):
        x = torch.relu(model.norms[i](layer(x)))
        x = torch.stack([functional.max_pool2d(own, 2) for own in x])
        cells = [part.mean((-1, -2)) for row in x.chunk(2, -2) for part in row.chunk(2, -1)]
        wanted.append(torch.stack(cells, -1).flatten(2))
    wanted[-1] = x = x.flatten(2)
    for i, layer in enumerate((model.fc1, model.fc2)):
        x = torch.relu(model.norms[3 + i](layer(x)))
        wanted.append(x)
    seen = found.features(images(found, 0))
    torch.testing.assert_close(seen, torch.cat(wanted, -1))
    assert found.readouts[0].in_features == seen.shape[-1]
    last = narrow("cab-readout", [0, 1], heads=False, norms="first", lift=0)
    torch.testing.assert_close(last.features(images(last, 0)), x)


def test_one_hidden_layer_has_one_thing_to_read() -> None:
    last, every = (
        taught(disjoint("cab-readout", [0], lift=20, reads=reads), 2) for reads in ("last", "all")
    )
    assert torch.equal(last.test(), every.test())


def test_a_body_that_is_fixed_after_the_first_task() -> None:
    found = narrow("cab-readout", [0, 1], heads=False, norms="first", body="fixed", lift=20)
    found.learn(0)
    before = {name: p.detach().clone() for name, p in found.model.named_parameters()}
    histories = found.learn(1)
    moved = [n for n, p in found.model.named_parameters() if not torch.equal(p, before[n])]
    assert moved == ["head.weight"]  # which is thrown away
    assert [history["step"] for history in histories] == [[1], [1]]
    assert found.shield.conceptors() == {}
    assert found.stored_numbers() == [21**2 + 100 * 21 + 100 + 2] * 2
    assert found.test()[:, 1].min() > 0


def test_cells_of_nothing() -> None:
    with pytest.raises(ValueError, match="grid must be at least 1, got 0"):
        disjoint("cab-readout", [0], grid=0)


@pytest.mark.usefixtures("fake")
def test_results_say_what_is_kept(tmp_path: Path) -> None:
    given = {"*": {**TINY, "lift": 40}}
    wanted = Experiment("disjoint-mnist", ["cab-readout"], [0, 1], settings=given)
    results = run(wanted, tmp_path, progress=quiet)
    sums = 41**2 + 10 * 41 + 10 + 2
    for one in results.runs:
        assert one.extras["stored_numbers"] == 785**2 + sums
        assert one.extras["lift_numbers"] == 40 * 20 + 20 + 40
    before = (tmp_path / "results.json").read_bytes()
    run(wanted, tmp_path, progress=quiet)  # nothing is left to do
    assert (tmp_path / "results.json").read_bytes() == before


@pytest.mark.parametrize("wrong", ["-1", "often"])
def test_a_regularization_that_cannot_be(wrong: str) -> None:
    with pytest.raises(ValueError, match="regularization must be auto or a number above 0"):
        disjoint("cab-readout", [0], regularization=wrong)


# --- what is read ------------------------------------------------------------------------------


def test_inputs_are_read_beside_what_the_body_makes_of_them() -> None:
    """Each through features of its own, fixed by the first task."""
    found = disjoint("cab-readout", [0, 1], lift=30, reads="inputs")
    assert found.features(images(found, 0)).shape[-1] == 784 + 20
    pixels, given = found.readouts[0].lift.parts
    assert (pixels.image, pixels.activation, pixels.out_features) == ((1, 28, 28), "fourier", 30)
    assert (given.in_features, given.out_features) == (20, 30)
    taught(found, 5)
    assert found.test().mean() > 90


@pytest.mark.parametrize("method", ["cab-readout", "shield-readout"])
def test_patches_of_inputs_in_colour_are_read(method: str) -> None:
    found = narrow(method, [0, 1], lift=0, reads="inputs", filters=7)
    patches, given = found.readouts[1].lift.parts
    assert (patches.in_features, patches.out_features) == (3 * 32 * 32, 7 * 4)
    assert given.out_features == given.in_features
    found.learn(0)
    assert found.readouts[0].lift.is_calibrated
    assert bool(found.accuracy(found.scenario.tasks[0].test, 0).isfinite().all())


def test_inputs_alone_are_what_a_readout_of_them_sees() -> None:
    """With a rate of 0, and all weights of the body at 0: only pixels tell."""
    found = disjoint("cab-readout", [3], lift=40, reads="inputs", rate=0.0)
    for parameter in found.model.parameters():
        parameter.data.zero_()
    taught(found, 5)
    alone = taught(disjoint_readout(3, 40), 5)
    assert abs(float(found.test().mean() - alone.test().mean())) < 5


def disjoint_readout(seed: int, lift: int) -> Any:
    kind = METHODS["readout"]
    scenario = build("disjoint-mnist", [seed], tasks=5, arrays=blobs())
    return kind(scenario, parse_settings(kind.settings_type, {"lift": lift}), CPU, quiet)


def test_images_may_be_read_mirrored_too() -> None:
    settings: dict[str, Any] = {"mirror": True, "reads": "inputs", "lift": 0, "filters": 5}
    made = []
    for mirrored in (True, False):
        torch.manual_seed(0)
        made.append(narrow("cab-readout", [0, 1], train=400, mirrored=mirrored, **settings))
        made[-1].learn(0)
    both, plain = made
    split = plain.scenario.tasks[0].train
    assert both.readouts[0].n_samples == 2 * plain.readouts[0].n_samples
    plain.model.eval()
    for rows, labels, counted in plain._looked_at(split, mirrored=True):
        for i, readout in enumerate(plain.readouts):
            readout.learn(rows[i, counted[i]], labels[i, counted[i]])
    x = images(plain, 0)
    torch.testing.assert_close(both.outputs(x, 0), plain.outputs(x, 0), rtol=1e-3, atol=1e-4)
    places = torch.arange(6).expand(2, -1)
    turned = plain.features(split.take(places)[0].flip(-1))
    rows, _, _ = next(plain._looked_at(split, mirrored=True))
    torch.testing.assert_close(rows[:, :6, :3072], turned[..., :3072])  # the images themselves
    assert not narrow("cab-readout", [0], mirrored=True).settings.mirrored  # none to be mirrored
