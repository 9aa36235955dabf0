"""Methods in closed form learn class by class, and equal what their formulas say directly."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods.linear import GAMMA, RIDGES
from conceptors.experiments.scenarios.images import build
from experiments.learners import make, taught
from experiments.tasks import blobs, one_by_one

CLASSES = 4
CLOSED: list[tuple[str, dict[str, Any]]] = [
    ("readout", {"lift": 60}),
    ("readout", {"lift": 0, "scores": "likelihood"}),
    ("ncm", {}),
    ("slda", {}),
    ("klda", {"lift": 60}),
    ("ranpac", {"lift": 60}),
    ("acil", {"lift": 60}),
]


def samples(learner: Any, part: str) -> tuple[Tensor, Tensor]:
    """All tasks' inputs and labels."""
    splits = [getattr(task, part) for task in learner.scenario.tasks]
    return torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits])


def scores(learner: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return learner.outputs(x, 0).double()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("method", "settings"), CLOSED, ids=str)
def test_classes_are_learned_in_turn(method: str, settings: dict[str, Any]) -> None:
    learner = make(method, one_by_one(), **settings)
    x, _ = samples(learner, "test")
    learner.learn(0)
    learner.learn(1)
    early = scores(learner, x)
    assert bool((early[:, 2:] == -torch.inf).all())  # never guessed
    assert bool(early[:, :2].isfinite().all())
    learner.learn(2)
    learner.learn(3)
    accuracies = learner.test()
    assert sum(accuracies) / 4 > 85
    assert accuracies[0] > 75  # the class that came first
    again, other = (taught(make(method, one_by_one(seed), **settings)) for seed in (0, 3))
    assert torch.equal(scores(again, x), scores(learner, x))
    is_random = settings.get("lift", 0) > 0
    assert torch.allclose(scores(other, x), scores(learner, x), atol=1e-3) != is_random


@pytest.mark.parametrize("method", ["readout", "ncm", "slda", "klda", "ranpac", "acil"])
def test_all_methods_see_the_same_patches(method: str) -> None:
    given = {"features": "patches", "filters": 8, "patch": 5, "grid": 2}
    lift = {} if method in ("ncm", "slda") else {"lift": 30}
    scenario = build("disjoint-mnist", 3, tasks=2, data=blobs())
    learner, ncm = make(method, scenario, **given, **lift), make("ncm", scenario, **given)
    learner.learn(0)
    filters = learner.model.filters.clone()
    learner.learn(1)
    assert torch.equal(learner.model.filters, filters)  # of the first task alone
    ncm.learn(0)
    assert torch.equal(ncm.model.filters, filters)
    assert sum(learner.test()) / 2 > 50
    with pytest.raises(ValueError, match="features=patches needs images"):
        make(method, one_by_one(), **given)


def test_ncm_is_the_nearest_mean() -> None:
    learner = taught(make("ncm", one_by_one()))
    (x, y), (test, _) = samples(learner, "train"), samples(learner, "test")
    means = torch.stack([x[y == k].double().mean(0) for k in range(CLASSES)])
    distances = torch.cdist(test.double(), means).square()
    ours = test.double().square().sum(1, keepdim=True) - scores(learner, test)
    torch.testing.assert_close(ours, distances)


@pytest.mark.parametrize("method", ["slda", "klda"])
def test_slda_and_klda_are_discriminant_analysis(method: str) -> None:
    learner = taught(make(method, one_by_one(), **({"lift": 20} if method == "klda" else {})))
    (x, y), (test, _) = samples(learner, "train"), samples(learner, "test")
    h, tested = learner.lifted(x).double(), learner.lifted(test).double()
    means = torch.stack([h[y == k].mean(0) for k in range(CLASSES)])
    around = h - means[y]
    covariance = (1 - 1e-4) * around.T @ around / len(h) + 1e-4 * torch.eye(h.shape[1])
    apart = tested[:, None] - means  # [n, classes, d]
    distances = ((apart @ torch.linalg.inv(covariance)) * apart).sum(-1)
    expected = (-distances / 2).softmax(1)
    torch.testing.assert_close(scores(learner, test).softmax(1), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["acil", "ranpac"])
def test_acil_and_ranpac_are_ridge_regression_at_once(method: str) -> None:
    learner = taught(make(method, one_by_one(), lift=40))
    (x, y), (test, _) = samples(learner, "train"), samples(learner, "test")
    h, tested = learner.lifted(x).double(), learner.lifted(test).double()
    raised = h.T @ h + getattr(learner, "ridge", GAMMA) * torch.eye(40)
    weights = torch.linalg.solve(raised, h.T @ torch.eye(CLASSES, dtype=torch.float64)[y])
    torch.testing.assert_close(scores(learner, test), tested @ weights, rtol=1e-3, atol=1e-4)


def test_ranpac_picks_its_ridge_on_a_fifth_of_the_last_task() -> None:
    """Two classes per task, which overlap: more than one ridge is sensible."""
    learner = make("ranpac", one_by_one(), lift=80)
    draw = torch.Generator().manual_seed(1)
    for first in (0, 2):
        x = torch.randn(60, 6, generator=draw)
        y = first + (x[:, first] + torch.randn(60, generator=draw) > 0).long()
        learner.add(x, y)
        learner.end_task(first)
    h, expected = learner.lifted(x).double(), torch.eye(CLASSES, dtype=torch.float64)[y]
    errors = []
    for ridge in RIDGES:
        raised = h[12:].T @ h[12:] + ridge * torch.eye(80)
        weights = torch.linalg.solve(raised, h[12:].T @ expected[12:])
        errors.append(float((h[:12] @ weights - expected[:12]).square().sum()))
    assert learner.ridge == RIDGES[int(np.argmin(errors))]
    assert RIDGES[0] < learner.ridge < RIDGES[-1]
