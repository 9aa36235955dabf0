"""The classifier of conceptors against its formula, and on real digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from conceptors import ConceptorClassifier

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def digits() -> list[Array]:
    """Training and held-out images, training and held-out labels."""
    X, y = load_digits(return_X_y=True)
    split: list[Array] = train_test_split(X / 16, y, random_state=0, stratify=y)
    return split


def by_hand(X: Array, y: Array, queries: Array, aperture: float, kind: str) -> Array:
    """xᵀ C_k x + xᵀ ¬(∨_{j≠k} C_j) x; at equal aperture OR adds correlations."""
    eye = np.eye(X.shape[1])
    moments = [X[y == k].T @ X[y == k] / (y == k).sum() for k in np.unique(y)]
    found = []
    for k, own in enumerate(moments):
        others = sum(R for j, R in enumerate(moments) if j != k)
        positive = own @ np.linalg.inv(own + aperture**-2 * eye)
        negative = eye - others @ np.linalg.inv(others + aperture**-2 * eye)
        used = {"both": positive + negative, "positive": positive, "negative": negative}[kind]
        found.append(np.einsum("ni,ij,nj->n", queries, used, queries))
    return np.stack(found, 1)


@pytest.mark.parametrize("kind", ["both", "positive", "negative"])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("per_class", [4, 60])
def test_evidence_is_the_formula(kind: str, fit_intercept: bool, per_class: int) -> None:
    """Also with fewer samples a class than dimensions, where conceptors are factored."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3 * per_class, 8)), np.repeat([0, 1, 2], per_class)
    clf = ConceptorClassifier(2.0, evidence=kind, fit_intercept=fit_intercept).fit(X, y)
    ones = np.ones((len(X), 1 if fit_intercept else 0))
    wanted = by_hand(np.hstack([X, ones]), y, np.hstack([X, ones]), 2.0, kind)
    np.testing.assert_allclose(clf.decision_function(X), wanted, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(clf.predict(X), wanted.argmax(1))


def test_two_classes_give_the_difference() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)) + 1, np.repeat(["yes", "no"], 20)
    clf = ConceptorClassifier(2.0, fit_intercept=False).fit(X, y)
    evidence = by_hand(X, y, X, 2.0, "both")
    np.testing.assert_allclose(clf.decision_function(X), evidence[:, 1] - evidence[:, 0])
    np.testing.assert_array_equal(
        clf.predict(X), np.where(clf.decision_function(X) > 0, "yes", "no")
    )


def test_held_out_digits(digits: list[Array]) -> None:
    train, test, y_train, y_test = digits
    scores = {
        kind: ConceptorClassifier(evidence=kind).fit(train, y_train).score(test, y_test)
        for kind in ("both", "positive", "negative")
    }
    assert scores["both"] >= 0.95
    assert scores["positive"] >= 0.95
    assert 0.9 < scores["negative"] < scores["both"]
    assert ConceptorClassifier(quota=0.5).fit(train, y_train).score(test, y_test) > 0.98
    assert ConceptorClassifier(aperture=10.0).fit(train, y_train).score(test, y_test) > 0.98


def test_every_class_claims_the_wanted_quota(digits: list[Array]) -> None:
    train, _, y_train, _ = digits
    clf = ConceptorClassifier(quota=0.3).fit(train, y_train)
    quotas = [float(c.quota) for c in clf.conceptors_]
    assert quotas == pytest.approx([0.3] * 10, abs=1e-6)


def test_the_scale_of_the_data_does_not_matter_without_an_intercept(digits: list[Array]) -> None:
    train, test, y_train, _ = digits
    small, large = (
        ConceptorClassifier(fit_intercept=False).fit(scale * train, y_train).predict(scale * test)
        for scale in (1.0, 1000.0)
    )
    assert (small == large).mean() > 0.999


def test_a_further_class_leaves_the_other_conceptors_alone(digits: list[Array]) -> None:
    train, _, y_train, _ = digits
    nine, ten = (
        ConceptorClassifier().fit(train[y_train < n], y_train[y_train < n]) for n in (9, 10)
    )
    assert all(a.allclose(b, atol=1e-12) for a, b in zip(nine.conceptors_, ten.conceptors_))


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_class_of_one_sample_or_of_zeros(fit_intercept: bool) -> None:
    """One sample claims its own direction only; a class of zeros claims nothing."""
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(size=(30, 6)), 5 * np.ones((1, 6)), np.zeros((4, 6))])
    y = np.repeat([0, 1, 2], [30, 1, 4])
    clf = ConceptorClassifier(fit_intercept=fit_intercept).fit(X, y)
    assert clf.predict(X[30:31]) == [1]
    assert float(clf.conceptors_[1].quota) < 1 / X.shape[1]
    assert (float(clf.conceptors_[2].quota) > 0) == fit_intercept


def test_fewer_than_two_classes_are_refused() -> None:
    clf = ConceptorClassifier()
    with pytest.raises(ValueError, match="at least 2 classes are needed, got 1 class: 7"):
        clf.fit(np.eye(3), [7, 7, 7])
    assert not [key for key in vars(clf) if key.endswith("_")]
