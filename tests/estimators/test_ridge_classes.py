"""Classes that come with their tasks, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conceptors import ConceptorRidge, ConceptorRidgeClassifier
from estimators.common import Digits, tasks, weights

solutions = pytest.mark.parametrize("solution", ["joint", "paper", "simplified"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weighting": "tasks"},
        {"aperture": 30.0},
        {"solution": "simplified", "aperture": 30.0, "regularization": 1e-3},
        {"lift": 200},
    ],
    ids=str,
)
def test_classes_come_with_their_tasks(digits: Digits, settings: dict[str, Any]) -> None:
    """String labels, unsorted arrival, an old class among new ones, tasks of one class."""
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    X, y = digits.X, np.array(names)[digits.y]
    clf = ConceptorRidgeClassifier(**settings)
    seen: set[str] = set()
    for arriving in (["seven", "two", "nine"], ["one"], ["two", "zero", "eight"], ["four", "six"]):
        rows = digits.train[np.isin(y[digits.train], arriving)]
        clf.partial_fit(X[rows], y[rows])
        seen |= set(arriving)
        assert clf.classes_.tolist() == sorted(seen)
        assert clf.coef_.shape == (len(seen), settings.get("lift", 64))
        assert clf.intercept_.shape == (len(seen),)
        assert clf.decision_function(X[:7]).shape == (7, len(seen))
        known = digits.test[np.isin(y[digits.test], sorted(seen))]
        assert clf.score(X[known], y[known]) > 0.9
    plain = ConceptorRidgeClassifier(**settings).fit(X[rows], y[rows])
    assert plain.score(X[known], y[known]) < 0.3


@solutions
def test_classifier_is_ridge_on_one_hot_targets(digits: Digits, solution: str) -> None:
    small, large = (
        digits.train[digits.y[digits.train] < 5],
        digits.train[digits.y[digits.train] > 4],
    )
    aperture = 7.0 if solution == "joint" else "auto"  # chosen otherwise for classes
    clf = ConceptorRidgeClassifier(aperture, solution=solution)
    reg = ConceptorRidge(aperture, solution=solution)
    for rows in (large, small):  # later classes come first
        clf.partial_fit(digits.X[rows], digits.y[rows])
        reg.partial_fit(digits.X[rows], digits.Y[rows])
    np.testing.assert_allclose(weights(clf), weights(reg), rtol=0, atol=1e-10)
    assert clf.quota_ == pytest.approx(reg.quota_, abs=1e-12)
    scores = clf.decision_function(digits.X)
    np.testing.assert_allclose(scores, reg.predict(digits.X), atol=1e-10)
    np.testing.assert_array_equal(clf.predict(digits.X), scores.argmax(1))


@solutions
def test_naming_classes_in_advance_changes_nothing_but_their_rows(
    digits: Digits, solution: str
) -> None:
    small, large = (
        digits.train[digits.y[digits.train] < 5],
        digits.train[digits.y[digits.train] > 4],
    )
    named, unnamed = (ConceptorRidgeClassifier(solution=solution) for _ in range(2))
    named.partial_fit(digits.X[small], digits.y[small], classes=range(10))
    assert named.classes_.tolist() == [*range(10)]
    assert np.abs(named.coef_[5:]).max() == 0
    unnamed.partial_fit(digits.X[small], digits.y[small])
    for clf in (named, unnamed):
        clf.partial_fit(digits.X[large], digits.y[large])
    np.testing.assert_allclose(weights(named), weights(unnamed), rtol=0, atol=1e-12)


def test_decision_function_of_one_two_and_three_classes() -> None:
    X = tasks()[0][0]
    y = np.repeat(["c", "a", "b"], [7, 7, 6])
    clf = ConceptorRidgeClassifier().partial_fit(X[:7], y[:7])
    assert clf.decision_function(X).shape == (20, 1)
    assert set(clf.predict(X)) == {"c"}
    clf.partial_fit(X[7:14], y[7:14])
    assert clf.decision_function(X).shape == (20,)
    np.testing.assert_array_equal(clf.predict(X), np.where(clf.decision_function(X) > 0, "c", "a"))
    clf.partial_fit(X[14:], y[14:])
    assert clf.decision_function(X).shape == (20, 3)
    assert clf.classes_.tolist() == ["a", "b", "c"]


def test_bad_classes_are_refused() -> None:
    X = tasks()[0][0]
    clf = ConceptorRidgeClassifier().fit(X, np.arange(20) % 2)
    before = weights(clf)
    for y, classes, message in [
        (np.arange(20) % 3, [0, 1], r"y has classes \[2\] that are not in classes=\[0, 1\]; name"),
        (np.linspace(0, 1, 20), None, "continuous"),
        (np.repeat(["a", "b"], 10), None, "string and number"),
        (np.zeros((20, 2)), None, "should be a 1d array"),
    ]:
        with pytest.raises(ValueError, match=message):
            clf.partial_fit(X, y, classes=classes)
    assert clf.classes_.tolist() == [0, 1]
    np.testing.assert_array_equal(weights(clf), before)
