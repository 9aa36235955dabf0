"""The joint solution is ridge regression on all tasks at once, in whatever order they come."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import Ridge

from conceptors import ConceptorRidge, ConceptorRidgeClassifier
from estimators.common import Digits, Task, tasks, weights, with_bias

Array = npt.NDArray[Any]
both_intercepts = pytest.mark.parametrize("fit_intercept", [False, True])


def together(seen: list[Task]) -> Task:
    X, y = (np.concatenate(part) for part in zip(*seen))
    return X, y


def by_hand(seen: list[Task], fit_intercept: bool, regularization: float, by_task: bool) -> Array:
    """K (R + λ I)⁻¹, R and K means over all samples, or sums over tasks of their means."""
    seen = seen if by_task else [together(seen)]
    rows = [with_bias(X, fit_intercept) for X, _ in seen]
    R = np.sum([b.T @ b / len(b) for b in rows], 0)
    K = np.sum([y.T @ b / len(b) for b, (_, y) in zip(rows, seen)], 0)
    return np.asarray(np.linalg.solve(R + regularization * np.eye(len(R)), K.T).T)


@both_intercepts
@pytest.mark.parametrize("weighting", ["samples", "tasks"])
@pytest.mark.parametrize("aperture", [0.5, 3.0, 40.0])
def test_it_is_the_formula(aperture: float, weighting: str, fit_intercept: bool) -> None:
    reg = ConceptorRidge(aperture, weighting=weighting, fit_intercept=fit_intercept)
    seen: list[Task] = []
    for task in tasks(count=5):
        reg.partial_fit(*task)
        seen.append(task)
        wanted = by_hand(seen, fit_intercept, aperture**-2, weighting == "tasks")
        np.testing.assert_allclose(weights(reg), wanted, rtol=0, atol=1e-9)
        assert reg.n_tasks_ == len(seen)
        assert (reg.aperture_, reg.regularization_) == pytest.approx((aperture, aperture**-2))
        claimed = np.trace(np.eye(len(reg.correlation_)) - reg.free_space())
        assert reg.quota_ == pytest.approx(claimed / len(reg.correlation_), abs=1e-10)
    assert not hasattr(reg, "increment_norm_")


@both_intercepts
def test_it_is_ridge_of_scikit_learn(fit_intercept: bool) -> None:
    seen = tasks(count=4)
    reg = ConceptorRidge(regularization=0.05, fit_intercept=fit_intercept)
    for task in seen:
        reg.partial_fit(*task)
    X, y = together(seen)
    wanted = Ridge(alpha=0.05 * len(X), fit_intercept=False).fit(with_bias(X, fit_intercept), y)
    np.testing.assert_allclose(weights(reg), wanted.coef_, rtol=0, atol=1e-10)
    np.testing.assert_allclose(weights(reg), weights(reg.fit(X, y)), rtol=0, atol=1e-10)


@both_intercepts
def test_a_chosen_regularization_is_ridge_on_standardised_inputs(fit_intercept: bool) -> None:
    seen = tasks(count=4)
    reg = ConceptorRidge(fit_intercept=fit_intercept)
    for X, y in seen:
        reg.partial_fit(1e3 * X + 5e3 * fit_intercept, y)
    X, y = together(seen)
    size = np.sqrt(np.square(X - X.mean(0) * fit_intercept).mean())
    wanted = Ridge(alpha=reg.regularization_ * len(X), fit_intercept=fit_intercept)
    wanted.fit(X / size, y)
    np.testing.assert_allclose(1e3 * size * reg.coef_, wanted.coef_, rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        reg.predict(1e3 * X + 5e3 * fit_intercept), wanted.predict(X / size), rtol=0, atol=1e-9
    )


@both_intercepts
@pytest.mark.parametrize("aperture", [0.5, 3.0, 40.0])
def test_simplified_at_equal_penalties_is_joint(aperture: float, fit_intercept: bool) -> None:
    """The theorem of the mathematics page, task by task."""
    common: dict[str, Any] = {"fit_intercept": fit_intercept, "warn_at_quota": 1}
    simplified = ConceptorRidge(aperture, aperture**-2, solution="simplified", **common)
    joint = ConceptorRidge(aperture, weighting="tasks", **common)
    for task in tasks(count=6):
        simplified.partial_fit(*task)
        joint.partial_fit(*task)
        np.testing.assert_allclose(weights(simplified), weights(joint), rtol=0, atol=1e-8)
        np.testing.assert_allclose(simplified.correlation_, joint.correlation_, rtol=1e-12)
        assert simplified.quota_ == pytest.approx(joint.quota_, abs=1e-10)


@pytest.mark.parametrize("aperture", ["auto", 3.0])
@pytest.mark.parametrize("weighting", ["samples", "tasks"])
def test_the_order_of_tasks_does_not_matter(aperture: Any, weighting: str) -> None:
    found = []
    for order in permutations(tasks(count=3)):
        reg = ConceptorRidge(aperture, weighting=weighting)
        for task in order:
            reg.partial_fit(*task)
        found.append(np.append(weights(reg), reg.regularization_))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"weighting": "tasks"}, {"aperture": 10.0}], ids=str)
def test_one_class_a_task_is_as_good_as_all_at_once(
    digits: Digits, settings: dict[str, Any]
) -> None:
    def learned(order: Any, **more: Any) -> ConceptorRidgeClassifier:
        clf = ConceptorRidgeClassifier(**more)
        for digit in order:
            rows = digits.train[digits.y[digits.train] == digit]
            clf.partial_fit(digits.X[rows], digits.y[rows])
        return clf

    X, y = digits.X[digits.test], digits.y[digits.test]
    up, mixed = (
        learned(order, **settings) for order in (range(10), [3, 1, 4, 9, 2, 6, 5, 8, 7, 0])
    )
    np.testing.assert_allclose(weights(mixed), weights(up), rtol=0, atol=1e-10)
    assert up.classes_.tolist() == mixed.classes_.tolist() == [*range(10)]
    assert up.score(X, y) >= 0.93
    once = ConceptorRidgeClassifier(**settings).fit(digits.X[digits.train], digits.y[digits.train])
    assert abs(up.score(X, y) - once.score(X, y)) < 0.005
    assert learned(range(10), solution="paper").score(X, y) < 0.4  # as printed


def test_weighting_says_what_counts() -> None:
    """A large task says 0 and a small one 1, about the same input."""
    X = np.ones((100, 1))
    large, small = (X[:90], np.zeros(90)), (X[:10], np.ones(10))
    for weighting, wanted in (("samples", 0.1), ("tasks", 0.5)):
        reg = ConceptorRidge(1e4, weighting=weighting, fit_intercept=False)
        reg.partial_fit(*large).partial_fit(*small)
        assert float(reg.coef_[0]) == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(ValueError, match=r"weighting='samples' differs .*'tasks'.* set it back"):
        reg.set_params(weighting="samples").partial_fit(*small)


@pytest.mark.parametrize("solution", ["joint", "paper", "simplified"])
@pytest.mark.parametrize("weighting", ["samples", "tasks"])
@pytest.mark.parametrize("aperture", ["auto", 3.0])
def test_parts_of_a_task_are_the_task(aperture: Any, weighting: str, solution: str) -> None:
    settings: dict[str, Any] = {"solution": solution, "weighting": weighting, "aperture": aperture}
    whole, parted = ConceptorRidge(**settings), ConceptorRidge(**settings)
    for k, (X, y) in enumerate(tasks()):
        whole.partial_fit(X, y)
        parted.partial_fit(X[:5], y[:5], task=k).partial_fit(X[5:], y[5:], task=k)
        assert whole.n_tasks_ == parted.n_tasks_ == k + 1
        np.testing.assert_allclose(weights(parted), weights(whole), rtol=0, atol=1e-10)
        assert parted.quota_ == pytest.approx(whole.quota_, abs=1e-10)


@pytest.mark.parametrize("weighting", ["samples", "tasks"])
def test_a_task_may_go_on_after_another_one(weighting: str) -> None:
    (X1, y1), (X2, y2), _ = tasks()
    mixed, plain = (ConceptorRidge(weighting=weighting) for _ in range(2))
    mixed.partial_fit(X1[:9], y1[:9], task="a").partial_fit(X2, y2).partial_fit(
        X1[9:], y1[9:], task="a"
    )
    plain.partial_fit(X1, y1).partial_fit(X2, y2)
    assert mixed.n_tasks_ == 2
    np.testing.assert_allclose(weights(mixed), weights(plain), rtol=0, atol=1e-10)


def test_in_turn_a_task_that_is_over_cannot_go_on() -> None:
    first, second, _ = tasks()
    reg = ConceptorRidge(solution="paper").partial_fit(*first, task="a").partial_fit(*second)
    before = weights(reg)
    with pytest.raises(ValueError, match=r"task 'a' is over: .* in a row, or use solution='joint'"):
        reg.partial_fit(*first, task="a")
    assert reg.n_tasks_ == 2
    np.testing.assert_array_equal(weights(reg), before)


@both_intercepts
@pytest.mark.parametrize("weighting", ["samples", "tasks"])
def test_an_aperture_may_be_given_later(weighting: str, fit_intercept: bool) -> None:
    """Chosen for the first task in units of its own, then given for inputs as they are."""
    first, second, _ = ((50 * X + 7, y) for X, y in tasks())
    settings: dict[str, Any] = {"weighting": weighting, "fit_intercept": fit_intercept}
    reg = ConceptorRidge(**settings).partial_fit(*first).set_params(aperture=0.1)
    wanted = ConceptorRidge(0.1, **settings).partial_fit(*first).partial_fit(*second)
    np.testing.assert_allclose(
        weights(reg.partial_fit(*second)), weights(wanted), rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(reg.correlation_, wanted.correlation_, rtol=1e-10)


def test_aperture_and_regularization_are_one() -> None:
    X, y = tasks()[0]
    one, other = ConceptorRidge(4.0), ConceptorRidge(regularization=1 / 16)
    both = ConceptorRidge(4.0, 1 / 16)
    for reg in (one, other, both):
        np.testing.assert_array_equal(weights(reg.fit(X, y)), weights(one))
        assert (reg.aperture_, reg.regularization_) == (4.0, 1 / 16)
    with pytest.raises(ValueError, match=r"aperture=4 and regularization=0.1 disagree.* = 0.0625;"):
        ConceptorRidge(4.0, 0.1).fit(X, y)


@pytest.mark.parametrize("kind", [ConceptorRidge, ConceptorRidgeClassifier])
def test_the_old_name_of_the_printed_formula_warns(kind: Any) -> None:
    X, y = tasks()[0][0], np.arange(20) % 3
    for learn in ("fit", "partial_fit"):
        with pytest.warns(FutureWarning, match=r"'exact' is now called 'paper'") as caught:
            old = getattr(kind(solution="exact"), learn)(X, y)
        assert [w.filename for w in caught] == [__file__]
        np.testing.assert_array_equal(weights(old), weights(kind(solution="paper").fit(X, y)))
