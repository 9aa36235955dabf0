"""Methods in closed form learn class by class, and equal what their formulas say directly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from conceptors.experiments.events import quiet
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.methods.closed.ranpac import RIDGES
from experiments.closed import CLASSES, CLOSED, INPUTS, TRAIN, learned, lifted, one_by_one, samples
from experiments.learners import CPU

# --- all of them -------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "settings"), CLOSED, ids=str)
def test_classes_are_learned_one_after_the_other(method: str, settings: dict[str, Any]) -> None:
    found = learned(method, [0, 5], **settings)
    assert float(found.test().mean()) > 85
    first = float(found.test()[:, 0].mean())
    assert first > 75  # the class that came first


@pytest.mark.parametrize(("method", "settings"), CLOSED, ids=str)
def test_seeds_repeat_and_do_not_meet(method: str, settings: dict[str, Any]) -> None:
    together = learned(method, [0, 3], **settings)
    x, _ = samples(together.scenario, "test")
    scores = together.model(x.expand(2, -1, -1))
    for i, seed in enumerate([0, 3]):
        alone = learned(method, [seed], **settings)
        torch.testing.assert_close(alone.model(x[None])[0], scores[i], rtol=1e-4, atol=1e-5)
    random = settings.get("lift", 0) > 0
    assert torch.allclose(scores[0], scores[1], atol=1e-3) != random


@pytest.mark.parametrize(("method", "settings"), CLOSED, ids=str)
def test_classes_never_seen_are_never_guessed(method: str, settings: dict[str, Any]) -> None:
    kind = METHODS[method]
    found = kind(one_by_one([0]), parse_settings(kind.settings_type, settings), CPU, quiet)
    found.learn(0)
    found.learn(1)
    x, _ = samples(found.scenario, "test")
    scores = found.model(x[None])
    assert bool((scores[..., 2:] == -torch.inf).all())
    assert bool(scores[..., :2].isfinite().all())


@pytest.mark.parametrize(
    ("method", "settings", "stored", "fixed"),
    [
        ("readout", {"lift": 30}, 31 * 31 + 4 * 31 + 4 + 2, 30 * 6 + 30 + 6),
        ("conceptor-ridge", {"lift": 30}, 31 * 31 + 4 * 31, 30 * 6 + 30 + 6),
        ("ncm", {}, 4 * 6 + 4, 0),
        ("slda", {}, 6 * 6 + 4 * 6 + 4 + 2, 0),
        ("klda", {"lift": 30, "members": 2}, 2 * (30 * 30 + 4 * 30 + 4 + 2), 2 * (30 * 6 + 36)),
        ("ranpac", {"lift": 30}, 30 * 30 + 4 * 30 + 4 + 2, 30 * 6),
        ("acil", {"lift": 30}, 30 * 30 + 4 * 30, 30 * 6),
    ],
)
def test_what_is_stored_is_told(
    method: str, settings: dict[str, Any], stored: int, fixed: int
) -> None:
    told = learned(method, [0], **settings).extras[0]
    assert (told["stored_numbers"], told["lift_numbers"]) == (stored, fixed)


# --- formulas ----------------------------------------------------------------------------


def test_ncm_is_the_nearest_mean() -> None:
    found = learned("ncm", [0])
    x, y = samples(found.scenario, "train")
    means = torch.stack([x[y == k].double().mean(0) for k in range(CLASSES)])
    test, _ = samples(found.scenario, "test")
    distances = torch.cdist(test.double(), means)
    scores = found.model(test[None])[0]
    assert torch.equal(scores.argmax(1), distances.argmin(1))
    apart = test.double().square().sum(1, keepdim=True) - scores
    torch.testing.assert_close(apart, distances.square())


def test_slda_is_scikit_learns() -> None:
    discriminant = pytest.importorskip("sklearn.discriminant_analysis")
    found = learned("slda", [0], shrinkage=0.0)
    x, y = samples(found.scenario, "train")
    theirs = discriminant.LinearDiscriminantAnalysis(
        solver="lsqr", priors=np.full(CLASSES, 1 / CLASSES)
    ).fit(x.double().numpy(), y.numpy())
    head = found.heads[0]
    torch.testing.assert_close(head.weights, torch.tensor(theirs.coef_), rtol=1e-4, atol=1e-5)
    test, _ = samples(found.scenario, "test")
    wanted = torch.tensor(theirs.decision_function(test.double().numpy()))
    wanted = wanted + np.log(CLASSES)  # log of the priors
    torch.testing.assert_close(found.model(test[None])[0], wanted, rtol=1e-4, atol=1e-3)


def test_shrinkage_makes_a_singular_covariance_usable() -> None:
    scenario = one_by_one([0])
    for task in scenario.tasks:
        for split in (task.train, task.test):
            split.x[:, -1] = 0
    kind = METHODS["slda"]
    found = kind(scenario, parse_settings(kind.settings_type, {}), CPU, quiet)
    found.learn(0)
    assert bool(found.model(scenario.tasks[0].test.x[None])[..., 0].isfinite().all())
    none = kind(scenario, parse_settings(kind.settings_type, {"shrinkage": 0.0}), CPU, quiet)
    with pytest.raises(ValueError, match="shrinkage 0 is too small"):
        none.learn(0)


def test_klda_adds_up_the_probabilities_of_its_members() -> None:
    found = learned("klda", [0], lift=20, members=3, shrinkage=0.01)
    x, y = samples(found.scenario, "train")
    test, _ = samples(found.scenario, "test")
    total = torch.zeros(len(test), CLASSES, dtype=torch.float64)
    for lift in found.heads[0].lifts:
        h, tested = lifted(lift, x), lifted(lift, test)
        means = torch.stack([h[y == k].mean(0) for k in range(CLASSES)])
        around = h - means[y]
        covariance = 0.99 * around.T @ around / len(h) + 0.01 * torch.eye(20)
        apart = tested[:, None] - means  # [n, classes, d]
        distance = ((apart @ torch.linalg.inv(covariance)) * apart).sum(-1)
        total += (-distance / 2).softmax(1) / 3
    torch.testing.assert_close(found.model(test[None])[0], total, rtol=1e-3, atol=1e-5)
    weights = [lift.weight for lift in found.heads[0].lifts]
    assert not torch.equal(weights[0], weights[1])


def test_acils_recursion_is_ridge_regression_at_once() -> None:
    found = learned("acil", [0], lift=40, gamma=0.3)
    x, y = samples(found.scenario, "train")
    head = found.heads[0]
    h = lifted(head.projection, x)
    raised = h.T @ h + 0.3 * torch.eye(40)
    wanted = torch.linalg.solve(raised, h.T @ torch.eye(CLASSES, dtype=torch.float64)[y])
    torch.testing.assert_close(head.weights, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(head.inverse, torch.linalg.inv(raised), rtol=1e-6, atol=1e-6)


def test_ranpac_picks_its_ridge_on_a_fifth_of_the_last_task() -> None:
    """Two classes a task, which overlap: more than one ridge is sensible."""
    kind = METHODS["ranpac"]
    found: Any = kind(one_by_one([0]), parse_settings(kind.settings_type, {"lift": 80}), CPU, quiet)
    head = found.heads[0]
    draw = torch.Generator().manual_seed(1)
    unit = torch.eye(CLASSES, dtype=torch.float64)
    tasks = []
    for first in (0, 2):
        x = torch.randn(60, INPUTS, generator=draw)
        y = first + (x[:, first] + torch.randn(60, generator=draw) > 0).long()
        head.learn(x, y)
        head.finish()
        tasks.append((lifted(head.projection, x), unit[y]))
    h, wanted = tasks[-1]
    errors = []
    for ridge in RIDGES:
        raised = h[12:].T @ h[12:] + ridge * torch.eye(80)
        weights = torch.linalg.solve(raised, h[12:].T @ wanted[12:])
        errors.append(float((h[:12] @ weights - wanted[:12]).square().sum()))
    assert head.ridge == RIDGES[int(np.argmin(errors))]
    assert RIDGES[0] < head.ridge < RIDGES[-1]
    every, all_wanted = (torch.cat(parts) for parts in zip(*tasks))
    raised = every.T @ every + head.ridge * torch.eye(80)
    direct = torch.linalg.solve(raised, every.T @ all_wanted).T
    torch.testing.assert_close(head.weights, direct, rtol=1e-3, atol=1e-4)


def test_the_readout_is_ridge_regression_on_everything() -> None:
    found = learned("readout", [0], lift=40, regularization="0.01")
    x, y = samples(found.scenario, "train")
    test, _ = samples(found.scenario, "test")
    lift = found.heads[0].readout.lift
    h, tested = (torch.cat([lifted(lift, z), torch.ones(len(z), 1)], 1) for z in (x, test))
    raised = h.T @ h + len(h) * 0.01 * torch.eye(41)
    weights = torch.linalg.solve(raised, h.T @ torch.eye(CLASSES, dtype=torch.float64)[y])
    scores = found.model(test[None])[0].double()
    torch.testing.assert_close(scores, tested @ weights, rtol=1e-3, atol=1e-4)


def test_conceptor_ridge_is_joint_ridge_or_as_the_paper_prints_it() -> None:
    joint = learned("conceptor-ridge", [0], lift=40, aperture=5.0, regularization=5.0**-2)
    x, y = samples(joint.scenario, "train")
    h = torch.cat([lifted(joint.heads[0].lift, x), torch.ones(len(x), 1)], 1)
    raised = h.T @ h / TRAIN + 5.0**-2 * torch.eye(41)  # tasks count as one each
    cross = h.T @ torch.eye(CLASSES, dtype=torch.float64)[y] / TRAIN
    weights = torch.linalg.solve(raised, cross).T
    torch.testing.assert_close(joint.heads[0].weights, weights, rtol=1e-4, atol=1e-5)
    own = {"lift": 40, "aperture": 5.0, "regularization": 5.0**-2}
    printed = learned("conceptor-ridge", [0], solution="paper", **own)
    assert not torch.allclose(printed.heads[0].weights, weights, atol=1e-2)
    for old, new in (("simplified", joint), ("exact", printed)):
        same = learned("conceptor-ridge", [0], solution=old, **own)
        assert torch.equal(same.heads[0].weights, new.heads[0].weights)


# --- settings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("readout", {"epochs": 3}, "unknown setting 'epochs'"),
        ("readout", {"regularization": "much"}, "regularization must be auto or a number"),
        ("readout", {"regularization": 0}, "regularization must be auto or a number above 0"),
        ("readout", {"activation": "sigmoid"}, "activation must be one of relu, tanh, fourier"),
        ("readout", {"features": "pixels"}, "features must be one of none, patches"),
        ("readout", {"lift": -1}, "lift must be a finite number >= 0"),
        ("conceptor-ridge", {"solution": "best"}, "solution must be one of joint, paper"),
        ("conceptor-ridge", {"lift": 0}, "lift must be at least 1"),
        ("ncm", {"patch": 1}, "patch must be at least 2"),
        ("slda", {"shrinkage": 1.5}, "shrinkage must be between 0 and 1"),
        ("klda", {"members": 0}, "members must be at least 1"),
        ("klda", {"shrinkage": 2}, "shrinkage must be between 0 and 1"),
        ("ranpac", {"lift": 0}, "lift must be at least 1"),
        ("acil", {"gamma": 0}, "gamma must be above 0"),
        ("ncm", {"features": "patches"}, "features=patches needs images"),
    ],
)
def test_bad_settings_are_refused(method: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learned(method, [0], **settings)
