"""What all estimators promise: scikit-learn's conventions, and no half-done changes."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils.estimator_checks import check_estimator

from conceptors import ConceptorRidge, ConceptorRidgeClassifier, ConceptorSGDRegressor
from conceptors.estimators import MemoryFullWarning
from estimators.common import Array

ESTIMATORS: list[Any] = [
    ConceptorRidge(),
    ConceptorRidge(solution="paper"),
    ConceptorRidge(fit_intercept=False),
    ConceptorRidge(lift=30, activation="tanh"),
    ConceptorRidgeClassifier(),
    ConceptorRidgeClassifier(solution="paper", lift=20, activation="fourier"),
    ConceptorRidgeClassifier(solution="simplified", fit_intercept=False),
    ConceptorSGDRegressor(epochs=50, random_state=0),
    ConceptorSGDRegressor(epochs=50, random_state=0, gradient="exact"),
]
IN_TURN = [e for e in ESTIMATORS if e.get_params().get("solution") != "joint"]
FITTED = ("coef_", "intercept_", "quota_", "n_tasks_", "classes_", "n_features_in_")
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)


def data(estimator: BaseEstimator, seed: int = 0, dim: int = 4) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, dim))
    if not is_classifier(estimator):
        return X, X @ np.arange(1.0, dim + 1) + 1
    label = rng.integers(2, size=60)
    X[np.arange(60), label] += 4
    return X, np.array(["left", "right"])[label]


def attributes(estimator: BaseEstimator) -> dict[str, Any]:
    """Parameters, names of all attributes, and the fitted ones."""
    values: dict[str, Any] = estimator.get_params() | {"names": sorted(vars(estimator))}
    return values | {key: getattr(estimator, key) for key in FITTED if hasattr(estimator, key)}


def assert_refused(
    estimator: BaseEstimator, call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """The call raises, says why, and leaves every attribute as it was."""
    before = copy.deepcopy(attributes(estimator))
    with pytest.raises(error, match=message):
        call()
    after = attributes(estimator)
    assert after.keys() == before.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value, err_msg=key)


@pytest.mark.filterwarnings("ignore::conceptors.estimators.MemoryFullWarning")  # very few samples
@each_estimator
def test_scikit_learn_accepts_it(estimator: BaseEstimator) -> None:
    checks = check_estimator(clone(estimator), on_skip=None)
    assert {check["status"] for check in checks} <= {"passed", "skipped"}
    assert sum(check["status"] == "passed" for check in checks) > 40


@each_estimator
def test_fit_forgets_and_partial_fit_does_not(estimator: BaseEstimator) -> None:
    first, second = data(estimator), data(estimator, seed=1)
    once = clone(estimator).partial_fit(*first)
    np.testing.assert_array_equal(once.coef_, clone(estimator).fit(*first).coef_)
    both = clone(estimator).partial_fit(*first).partial_fit(*second)
    assert (once.n_tasks_, both.n_tasks_) == (1, 2)
    assert estimator not in IN_TURN or once.quota_ < both.quota_ < 1
    again = both.fit(*first)
    np.testing.assert_array_equal(again.coef_, once.coef_)
    assert (again.n_tasks_, again.quota_) == (1, once.quota_)
    assert again.fit(*data(estimator, dim=7)).n_features_in_ == 7


@pytest.mark.parametrize(
    ("parameter", "value", "error", "message"),
    [
        ("aperture", 0.0, ValueError, "aperture must be .* got 0"),
        ("aperture", float("inf"), ValueError, "aperture must be .* got inf"),
        ("aperture", "wide", TypeError, "aperture must be a number, got 'wide'"),
        ("regularization", -1e-3, ValueError, "regularization must be .* got -0.001"),
        ("solution", "fast", ValueError, r"solution must be .*'simplified'.* got 'fast'"),
        ("activation", "step", ValueError, r"activation must be one of .*'relu', .* got 'step'"),
        ("lift", 2.5, TypeError, "lift must be a whole number, got 2.5"),
        ("gradient", "fast", ValueError, "gradient must be one of .* got 'fast'"),
        ("learning_rate", 0.0, ValueError, "learning_rate must be .* got 0"),
        ("batch_size", 0, ValueError, "batch_size must be at least 1, got 0"),
    ],
)
@pytest.mark.parametrize("fitted", [False, True])
def test_bad_parameters_are_refused(
    parameter: str, value: Any, error: type[Exception], message: str, fitted: bool
) -> None:
    for estimator in [clone(e) for e in ESTIMATORS if parameter in e.get_params()]:
        X, y = data(estimator)
        if fitted:
            estimator.fit(X, y)
        estimator.set_params(**{parameter: value})
        assert_refused(estimator, partial(estimator.partial_fit, X, y), error, message)


@each_estimator
def test_bad_data_is_refused(estimator: BaseEstimator) -> None:
    """Scikit-learn's checks pass more kinds of it; here nothing changes."""
    estimator = clone(estimator)
    X, y = data(estimator)
    estimator.fit(X, y)
    for value, message in ((np.nan, "NaN"), (1e200, r"X reaches 1e\+200.*scale X")):
        spoiled = X.copy()
        spoiled[3, 1] = value
        for learn in (estimator.fit, estimator.partial_fit):
            assert_refused(estimator, partial(learn, spoiled, y), ValueError, message)


@each_estimator
def test_a_later_task_must_fit_the_earlier_ones(estimator: BaseEstimator) -> None:
    estimator = clone(estimator).partial_fit(*data(estimator))
    wrong: list[tuple[dict[str, Any], int, Any, str]] = [
        ({}, 5, None, "5 features.* 4 "),
        ({"fit_intercept": not estimator.fit_intercept}, 4, None, "fit_intercept=.* set it back"),
    ]
    if hasattr(estimator, "lift"):
        wrong.append(({"lift": 40}, 4, None, "lift=40 differs .* set it back"))
    if not is_classifier(estimator):
        wrong.append(({}, 4, np.ones((60, 2)), r"y of shape .* whose y had shape \[n\]; give y"))
        wrong.append(({}, 4, np.full(60, 1e200), r"y reaches 1e\+200: its squares overflow"))
    for options, dim, targets, message in wrong:
        before = estimator.get_params()
        X, y = data(estimator, dim=dim)
        estimator.set_params(**options)
        learn = partial(estimator.partial_fit, X, y if targets is None else targets)
        assert_refused(estimator, learn, ValueError, message)
        estimator.set_params(**before)


@pytest.mark.parametrize("estimator", IN_TURN, ids=str)
def test_a_memory_warning_made_an_error_undoes_the_task(estimator: BaseEstimator) -> None:
    estimator = clone(estimator).set_params(aperture=1e6)
    estimator.fit(*data(estimator))
    learn = partial(estimator.partial_fit, *data(estimator, seed=1))
    assert_refused(estimator, learn, MemoryFullWarning, "memory is nearly full after 2 tasks")
