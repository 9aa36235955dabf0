"""Methods in closed form learn class by class, and equal what their formulas say directly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conceptors.experiments.methods.closed.ridge import RIDGES
from conceptors.experiments.scenarios import build
from experiments.learners import make, taught
from experiments.tasks import blobs, one_by_one

CLASSES = 4
CLOSED: list[tuple[str, dict[str, Any], int]] = [  # with the numbers that they store
    ("readout", {"lift": 60}, 61 * 61 + 4 * 61 + 4),
    ("readout", {"lift": 0, "scores": "likelihood"}, 7 * 7 + 4 * 7 + 4),
    ("readout", {"lift": 60, "activation": "relu", "regularization": "0.01"}, 61**2 + 4 * 61 + 4),
    ("ncm", {}, 4 * 6 + 4),
    ("slda", {}, 6 * 6 + 4 * 6 + 4),
    ("klda", {"lift": 60}, 60 * 60 + 4 * 60 + 4),
    ("ranpac", {"lift": 60}, 60 * 60 + 4 * 60 + 4),
    ("acil", {"lift": 60}, 60 * 60 + 4 * 60 + 4),
]


def learned(method: str, seed: int = 0, **settings: Any) -> Any:
    return taught(make(method, one_by_one(seed), **settings))


def samples(learner: Any, part: str) -> tuple[Tensor, Tensor]:
    """All tasks' inputs and labels."""
    splits = [getattr(task, part) for task in learner.scenario.tasks]
    return torch.cat([s.x for s in splits]), torch.cat([s.y for s in splits])


def scores(learner: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return learner.outputs(x, 0).double()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("method", "settings", "stored"), CLOSED, ids=str)
def test_classes_are_learned_one_after_the_other(
    method: str, settings: dict[str, Any], stored: int
) -> None:
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
    assert learner.extras["stored_numbers"] == stored
    again, other = learned(method, 0, **settings), learned(method, 3, **settings)
    assert torch.equal(scores(again, x), scores(learner, x))
    is_random = settings.get("lift", 0) > 0
    assert torch.allclose(scores(other, x), scores(learner, x), atol=1e-3) != is_random


@pytest.mark.parametrize("method", [method for method, *_ in CLOSED[1:]])
def test_all_methods_see_the_same_patches(method: str) -> None:
    given = {"features": "patches", "filters": 8, "patch": 5, "grid": 2}
    lift = {} if method in ("ncm", "slda") else {"lift": 30}
    scenario = build("disjoint-mnist", 3, tasks=2, arrays=blobs())
    learner = make(method, scenario, **given, **lift)
    ncm = make("ncm", scenario, **given)
    for one in (learner, ncm):
        one.learn(0)
    filters = learner.model.filters.clone()
    assert torch.equal(filters, ncm.model.filters)
    learner.learn(1)
    assert torch.equal(learner.model.filters, filters)  # of the first task alone
    assert sum(learner.test()) / 2 > 50
    with pytest.raises(ValueError, match="features=patches needs images"):
        make(method, one_by_one(), **given)


# --- formulas ----------------------------------------------------------------------------


def test_ncm_is_the_nearest_mean() -> None:
    learner = learned("ncm")
    x, y = samples(learner, "train")
    means = torch.stack([x[y == k].double().mean(0) for k in range(CLASSES)])
    test, _ = samples(learner, "test")
    distances = torch.cdist(test.double(), means).square()
    found = test.double().square().sum(1, keepdim=True) - scores(learner, test)
    torch.testing.assert_close(found, distances)


def test_slda_is_scikit_learns() -> None:
    discriminant = pytest.importorskip("sklearn.discriminant_analysis")
    learner = learned("slda", shrinkage=0.0)
    x, y = samples(learner, "train")
    theirs = discriminant.LinearDiscriminantAnalysis(
        solver="lsqr", priors=np.full(CLASSES, 1 / CLASSES)
    ).fit(x.double().numpy(), y.numpy())
    test, _ = samples(learner, "test")
    wanted = torch.tensor(theirs.decision_function(test.double().numpy())) + np.log(CLASSES)
    torch.testing.assert_close(scores(learner, test), wanted, rtol=1e-5, atol=1e-5)


def test_shrinkage_makes_a_singular_covariance_usable() -> None:
    scenario = one_by_one()
    for task in scenario.tasks:
        task.train.x[:, -1] = 0
    make("slda", scenario).learn(0)
    with pytest.raises(ValueError, match="shrinkage 0 is too small"):
        make("slda", scenario, shrinkage=0.0).learn(0)


def test_klda_is_discriminant_analysis_of_its_features() -> None:
    learner = learned("klda", lift=20, shrinkage=0.01)
    (x, y), (test, _) = samples(learner, "train"), samples(learner, "test")
    h, tested = (learner.lift(rows).double() for rows in (x, test))
    means = torch.stack([h[y == k].mean(0) for k in range(CLASSES)])
    around = h - means[y]
    covariance = 0.99 * around.T @ around / len(h) + 0.01 * torch.eye(20)
    apart = tested[:, None] - means  # [n, classes, d]
    distances = ((apart @ torch.linalg.inv(covariance)) * apart).sum(-1)
    wanted = (-distances / 2).softmax(1)
    torch.testing.assert_close(scores(learner, test).softmax(1), wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["acil", "ranpac", "readout"])
def test_they_are_ridge_regression_at_once(method: str) -> None:
    own: dict[str, Any] = {"acil": {"gamma": 0.3}, "readout": {"regularization": "0.01"}}
    learner = learned(method, lift=40, **own.get(method, {}))
    (x, y), (test, _) = samples(learner, "train"), samples(learner, "test")
    if method == "readout":

        def lift(z: Tensor) -> Tensor:
            return torch.cat([learner.readout.lift(z), torch.ones(len(z), 1)], 1)

        ridge = 0.01 * len(x)
    else:
        lift, ridge = learner.lifted, {"acil": 0.3, "ranpac": getattr(learner, "ridge", 0)}[method]
    h, tested = lift(x).double(), lift(test).double()
    raised = h.T @ h + ridge * torch.eye(h.shape[1])
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
    h, wanted = learner.lifted(x).double(), torch.eye(CLASSES, dtype=torch.float64)[y]
    errors = []
    for ridge in RIDGES:
        raised = h[12:].T @ h[12:] + ridge * torch.eye(80)
        weights = torch.linalg.solve(raised, h[12:].T @ wanted[12:])
        errors.append(float((h[:12] @ weights - wanted[:12]).square().sum()))
    assert learner.ridge == RIDGES[int(np.argmin(errors))]
    assert RIDGES[0] < learner.ridge < RIDGES[-1]
