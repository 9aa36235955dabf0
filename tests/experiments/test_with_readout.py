"""A body under conceptors with a readout after it: classes of all tasks, told apart by one head."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors.experiments.scenarios.images import build
from experiments.learners import make, narrow, taught
from experiments.tasks import blobs

SMALL: dict[str, Any] = {"hidden": "20,15", "steps": 60, "batch": 16, "check_every": 20}


def disjoint(method: str, *, heads: bool = False) -> Any:
    """A learner of five tasks of two classes each."""
    scenario = replace(build("disjoint-mnist", 4, tasks=5, data=blobs()), heads=heads)
    return make(method, scenario, **SMALL, **({"lift": 60} if "readout" in method else {}))


def images(learner: Any, number: int) -> Tensor:
    """Some test images of a task."""
    x: Tensor = learner.scenario.tasks[number].test.take(torch.arange(12))[0]
    return x


@pytest.mark.parametrize("method", ["cab-readout", "shield-readout"])
def test_one_head_for_disjoint_tasks(method: str) -> None:
    ours = disjoint(method)
    assert all(accuracy <= 100 for accuracy in ours.test())  # before any task
    pixels, layers = ours.readout.lift.parts
    assert (pixels.image, pixels.activation, pixels.out_features) == ((1, 28, 28), "fourier", 60)
    assert (layers.in_features, layers.out_features) == (35, 60)
    head = ours.model.layers[-1]
    initial = head.weight.detach().clone()
    ours.learn(0)
    is_trained = (head.weight != initial).any(1)
    assert torch.equal(is_trained, ours.scenario.tasks[0].classes)  # only its own classes
    scores = ours.outputs(images(ours, 4), 4)
    assert torch.equal((scores > -torch.inf).all(0), ours.scenario.tasks[0].classes)
    for number in range(1, 5):
        ours.learn(number)
    assert sum(ours.test()) / 5 > 90
    assert sum(taught(disjoint("sgd")).test()) / 5 < 40
    assert len(ours.shield.conceptors()) == (2 if method == "cab-readout" else 0)


@pytest.mark.parametrize("heads", [True, False])
def test_a_body_is_fixed_by_default_where_tasks_share_a_head(heads: bool) -> None:
    ours = disjoint("shield-readout", heads=heads)
    ours.learn(0)
    before = [p.detach().clone() for p in ours.model.parameters()]
    ours.learn(1)
    body = list(zip(ours.model.parameters(), before))[:4]
    assert [torch.equal(p, b) for p, b in body] == [not heads] * 4
    assert list(ours.shield.conceptors()) == (["layers.0", "layers.1"] if heads else [])


@pytest.mark.parametrize("mirror", [True, False])
def test_colour_images_are_read_as_patches_both_ways(mirror: bool) -> None:
    ours = narrow("cab-readout", mirror=mirror, filters=5, lift=0, train=400, aperture=4.0)
    patches, layers = ours.readout.lift.parts
    assert (patches.in_features, patches.out_features) == (3 * 32 * 32, 5 * 4)
    assert layers.out_features == layers.in_features
    ours.learn(0)
    assert ours.readout.n_samples == (1 + mirror) * len(ours.scenario.tasks[0].train)
    assert ours.test(1)[0] > 50
