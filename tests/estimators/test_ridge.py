"""Ridge regression of tasks: all at once, or in turn as in section 2.2, and on real digits."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge

from conceptors import Conceptor, ConceptorRidge, ConceptorRidgeClassifier
from conceptors.estimators import MemoryFullWarning
from estimators.common import Task, tasks, weights, with_bias

both_intercepts = pytest.mark.parametrize("fit_intercept", [False, True])
in_turn = pytest.mark.parametrize("solution", ["paper", "simplified"])

images, labels = load_digits(return_X_y=True)
images, one_hot = images / 16, np.eye(10)[labels]
order = np.random.default_rng(0).permutation(len(images))
train, test = order[:1300], order[1300:]


@both_intercepts
@pytest.mark.parametrize("aperture", [0.5, 40.0])
def test_joint_is_the_formula(aperture: float, fit_intercept: bool) -> None:
    """K (R + λ I)⁻¹ with means R and K over all samples."""
    reg = ConceptorRidge(aperture, fit_intercept=fit_intercept)
    seen: list[Task] = []
    for task in tasks(count=5):
        reg.partial_fit(*task)
        seen.append(task)
        n = sum(len(X) for X, _ in seen)
        R, K = np.zeros((5 + fit_intercept,) * 2), np.zeros((2, 5 + fit_intercept))
        for X, y in seen:
            b = with_bias(X, fit_intercept)
            R, K = R + b.T @ b / n, K + y.T @ b / n
        W = np.linalg.solve(R + aperture**-2 * np.eye(len(R)), K.T).T
        np.testing.assert_allclose(weights(reg), W, rtol=0, atol=1e-9)
        assert reg.n_tasks_ == len(seen)
        assert (reg.aperture_, reg.regularization_) == pytest.approx((aperture, aperture**-2))
        assert reg.quota_ == pytest.approx(1 - np.trace(reg.free_space()) / len(R), abs=1e-10)


@both_intercepts
def test_a_chosen_regularization_is_ridge_on_standardised_inputs(fit_intercept: bool) -> None:
    reg = ConceptorRidge(fit_intercept=fit_intercept)
    for X, y in tasks(count=4):
        reg.partial_fit(1e3 * X + 5e3 * fit_intercept, y)
    X, y = (np.concatenate(part) for part in zip(*tasks(count=4)))
    size = np.sqrt(np.square(X - X.mean(0) * fit_intercept).mean())
    ridge = Ridge(alpha=reg.regularization_ * len(X), fit_intercept=fit_intercept)
    ridge.fit(X / size, y)
    np.testing.assert_allclose(1e3 * size * reg.coef_, ridge.coef_, rtol=0, atol=1e-9)
    predicted = reg.predict(1e3 * X + 5e3 * fit_intercept)
    np.testing.assert_allclose(predicted, ridge.predict(X / size), rtol=0, atol=1e-9)


@both_intercepts
@pytest.mark.filterwarnings("ignore::conceptors.estimators.MemoryFullWarning")
@pytest.mark.parametrize("aperture", [0.5, 40.0])
def test_simplified_at_equal_penalties_is_joint(aperture: float, fit_intercept: bool) -> None:
    """The theorem of the mathematics page, task by task: R is a sum there, and a mean in joint."""
    options: dict[str, Any] = {"solution": "simplified", "fit_intercept": fit_intercept}
    simplified = ConceptorRidge(aperture, aperture**-2, **options)
    joint = ConceptorRidge(fit_intercept=fit_intercept)
    for number, (X, y) in enumerate(tasks(count=6), 1):
        simplified.partial_fit(X[:20], y[:20])
        joint.set_params(aperture=aperture * number**0.5).partial_fit(X[:20], y[:20])
        np.testing.assert_allclose(weights(simplified), weights(joint), rtol=0, atol=1e-8)
        assert simplified.quota_ == pytest.approx(joint.quota_, abs=1e-10)


def test_aperture_and_regularization_are_one() -> None:
    X, y = tasks()[0]
    for reg in (
        ConceptorRidge(4.0),
        ConceptorRidge(regularization=1 / 16),
        ConceptorRidge(4.0, 1 / 16),
    ):
        np.testing.assert_array_equal(
            weights(reg.fit(X, y)), weights(ConceptorRidge(4.0).fit(X, y))
        )
        assert (reg.aperture_, reg.regularization_) == (4.0, 1 / 16)
    with pytest.raises(ValueError, match=r"aperture=4 and regularization=0.1 disagree.* = 0.0625;"):
        ConceptorRidge(4.0, 0.1).fit(X, y)


@both_intercepts
@pytest.mark.parametrize("outputs", [None, 2])
def test_paper_is_section_2_2(fit_intercept: bool, outputs: int | None) -> None:
    alpha, regularization = 2.0, 0.03
    reg = ConceptorRidge(alpha, regularization, solution="paper", fit_intercept=fit_intercept)
    N = 5 + fit_intercept
    W, A = np.zeros((outputs or 1, N)), Conceptor.zero(N)
    for rows, y in tasks(outputs=outputs):
        X, Y, n = with_bias(rows, fit_intercept).T, y.reshape(len(y), -1).T, len(rows)
        T, S = Y - W @ X, (~A).matrix().numpy() @ X
        W_inc = (np.linalg.inv(S @ S.T / n + regularization * np.eye(N)) @ S @ T.T / n).T
        W, A = W + W_inc, A | Conceptor.from_correlation(torch.tensor(X @ X.T / n), alpha)
        reg.partial_fit(rows, y)
        np.testing.assert_allclose(weights(reg), W, rtol=0, atol=1e-10)
        np.testing.assert_allclose(reg.free_space(), (~A).matrix(), rtol=0, atol=1e-10)
        assert reg.quota_ == pytest.approx(float(A.quota), abs=1e-12)
        np.testing.assert_allclose(reg.predict(rows), (W @ X).T.reshape(y.shape), atol=1e-10)


@in_turn
def test_a_warning_says_when_memory_is_full(solution: str) -> None:
    """Each permutation of the pixels is a new task; at aperture 2000 there is room for one."""
    settings: dict[str, Any] = {"solution": solution, "aperture": 2000.0}
    reg = ConceptorRidge(**settings)
    messages: list[list[str]] = []
    for seed in range(3):
        X = images[:, np.random.default_rng(seed).permutation(64)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reg.partial_fit(X[train], one_hot[train])
        assert all(w.filename == __file__ for w in caught)
        messages.append([str(w.message) for w in caught if w.category is MemoryFullWarning])
    assert [len(task) for task in messages] == [0, 1, 1]
    assert "memory is nearly full after 2 tasks" in messages[1][0]
    assert "Lower the aperture (2000), or use more features" in messages[1][0]
    reg.fit(X[train], one_hot[train])  # warnings are errors here
    ConceptorRidge(1e6).partial_fit(images, one_hot)  # joint goes on learning


@pytest.mark.parametrize("settings", [{}, {"solution": "simplified"}, {"lift": 200}], ids=str)
def test_classes_come_with_their_tasks(settings: dict[str, Any]) -> None:
    """String labels, unsorted arrival, an old class among new ones, tasks of one class."""
    y = np.array([*"jihgfedcba"])[labels]
    clf = ConceptorRidgeClassifier(**settings)
    seen: set[str] = set()
    for arriving in (["c"], ["h"], ["h", "j", "b"], ["f", "d"]):
        rows = train[np.isin(y[train], arriving)]
        clf.partial_fit(images[rows], y[rows])
        seen |= set(arriving)
        assert clf.classes_.tolist() == sorted(seen)
        assert clf.coef_.shape == (len(seen), settings.get("lift", 64))
        shape = (7,) if len(seen) == 2 else (7, len(seen))
        assert clf.decision_function(images[:7]).shape == shape
        known = test[np.isin(y[test], sorted(seen))]
        assert clf.score(images[known], y[known]) > 0.9


@pytest.mark.parametrize("solution", ["joint", "paper", "simplified"])
def test_a_classifier_is_ridge_on_one_hot_targets(solution: str) -> None:
    """Also if classes are named in advance."""
    aperture: Any = 7.0 if solution == "joint" else "auto"  # chosen otherwise for classes
    clf, named = (ConceptorRidgeClassifier(aperture, solution=solution) for _ in range(2))
    reg = ConceptorRidge(aperture, solution=solution)
    for rows in (train[labels[train] > 4], train[labels[train] < 5]):  # later classes first
        clf.partial_fit(images[rows], labels[rows])
        named.partial_fit(images[rows], labels[rows], classes=range(10))
        reg.partial_fit(images[rows], one_hot[rows])
    for other in (clf, named):
        np.testing.assert_allclose(weights(other), weights(reg), rtol=0, atol=1e-10)
    np.testing.assert_allclose(clf.decision_function(images), reg.predict(images), atol=1e-10)


def test_a_chosen_regularization_is_smaller_where_only_the_largest_output_counts() -> None:
    clf, reg = ConceptorRidgeClassifier().fit(images, labels), ConceptorRidge().fit(images, one_hot)
    assert clf.regularization_ < 0.9 * reg.regularization_


def test_bad_classes_are_refused() -> None:
    X = tasks()[0][0]
    clf = ConceptorRidgeClassifier().fit(X, np.arange(20) % 2)
    for y, classes, message in [
        (np.arange(20) % 3, [0, 1], r"y has classes \[2\] that are not in classes=\[0, 1\]; name"),
        (np.linspace(0, 1, 20), None, "continuous"),
        (np.repeat(["a", "b"], 10), None, "string and number"),
    ]:
        with pytest.raises(ValueError, match=message):
            clf.partial_fit(X, y, classes=classes)
    assert clf.classes_.tolist() == [0, 1]


def test_columns_of_different_scale_are_solved_or_reported_with_the_remedy() -> None:
    X = np.random.default_rng(0).normal(size=(400, 3)) * [1e2, 1.0, 0.1]
    y = X @ [1e-2, 1.0, 10.0] + 5
    assert ConceptorRidge().fit(X, y).score(X, y) > 1 - 1e-5
    for lift in (0, 50):
        with pytest.warns(UserWarning, match=r"differ in scale by a factor of .*StandardScaler"):
            ConceptorRidgeClassifier(lift=lift).fit(X * [1e6, 1, 1e-7], y > 5)
