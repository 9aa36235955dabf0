"""What all estimators promise: scikit-learn's conventions, and no half-done changes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from conceptors.estimators import MemoryFullWarning
from conceptors import (
    ConceptorRidge,
    ConceptorRidgeClassifier,
    ConceptorSGDRegressor,

)

Array = npt.NDArray[Any]

ESTIMATORS: list[Any] = [
    ConceptorRidge(),
    ConceptorRidge(solution="paper"),
    ConceptorRidge(solution="simplified", fit_intercept=False),
    ConceptorRidge(weighting="tasks", fit_intercept=False),
    ConceptorRidge(lift=30, activation="tanh"),
    ConceptorRidgeClassifier(),
    ConceptorRidgeClassifier(aperture=10.0, weighting="tasks"),
    ConceptorRidgeClassifier(solution="paper", lift=20, activation="fourier"),
    ConceptorRidgeClassifier(solution="simplified", fit_intercept=False),
    ConceptorRidgeClassifier(lift=30),
    ConceptorSGDRegressor(epochs=50, random_state=0),
    ConceptorSGDRegressor(epochs=50, random_state=0, gradient="exact", average=False),
]
LEARNERS = [e for e in ESTIMATORS if hasattr(e, "partial_fit")]
IN_TURN = [e for e in LEARNERS if e.get_params().get("solution") != "joint"]
TOLD = ("coef_", "intercept_", "quota_", "correlation_", "n_tasks_", "classes_", "n_features_in_")
name = str


def data(estimator: BaseEstimator, seed: int = 0, dim: int = 4) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, dim))
    if not is_classifier(estimator):
        return X, X @ np.arange(1.0, dim + 1) + 1
    label = rng.integers(2, size=60)
    X[np.arange(60), label] += 4
    return X, np.array(["left", "right"])[label]


def told(estimator: BaseEstimator) -> dict[str, Any]:
    """Parameters, names of all attributes, and whatever can be asked."""
    found: dict[str, Any] = estimator.get_params() | {"names": sorted(vars(estimator))}
    return found | {key: getattr(estimator, key) for key in TOLD if hasattr(estimator, key)}


def assert_refused(
    estimator: BaseEstimator, call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """The call raises, says why, and leaves every attribute as it was."""
    before = copy.deepcopy(told(estimator))
    with pytest.raises(error, match=message):
        call()
    after = told(estimator)
    assert after.keys() == before.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(after[key], value, err_msg=key)


@pytest.mark.filterwarnings("ignore::conceptors.estimators.MemoryFullWarning")  # tasks of very few samples
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_scikit_learn_accepts_it(estimator: BaseEstimator) -> None:
    found = check_estimator(clone(estimator), on_skip=None)
    assert {check["status"] for check in found} <= {"passed", "skipped"}
    assert sum(check["status"] == "passed" for check in found) > 45


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_it_works_with_the_tools_of_scikit_learn(estimator: BaseEstimator) -> None:
    X, y = data(estimator)
    pipeline = make_pipeline(StandardScaler(with_mean=False), clone(estimator))
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.5
    step = type(estimator).__name__.lower()
    search = GridSearchCV(pipeline, {f"{step}__aperture": [1.0, 10.0]}, cv=3).fit(X, y)
    assert search.best_estimator_.score(X, y) > 0.5


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_a_copy_by_pickle_goes_on_as_the_original(estimator: BaseEstimator) -> None:
    X, y = data(estimator)
    original = clone(estimator).fit(X, y)
    restored = pickle.loads(pickle.dumps(original))
    np.testing.assert_array_equal(restored.predict(X), original.predict(X))
    if hasattr(estimator, "partial_fit"):
        more = data(estimator, seed=1)
        np.testing.assert_array_equal(
            restored.partial_fit(*more).coef_, original.partial_fit(*more).coef_
        )


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_a_clone_is_as_new(estimator: BaseEstimator) -> None:
    X, y = data(estimator)
    fitted = clone(estimator).fit(X, y)
    assert not [key for key in vars(clone(fitted)) if key.endswith("_")]
    assert clone(fitted).get_params() == estimator.get_params()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
def test_read_only_data_is_taken(estimator: BaseEstimator) -> None:
    X, y = data(estimator)
    wanted = clone(estimator).fit(X, y).predict(X)
    X.flags.writeable = y.flags.writeable = False
    np.testing.assert_array_equal(clone(estimator).fit(X, y).predict(X), wanted)


@pytest.mark.parametrize("estimator", LEARNERS, ids=name)
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
    wider = data(estimator, dim=7)
    assert again.fit(*wider).n_features_in_ == 7


@pytest.mark.parametrize(
    ("parameter", "value", "error", "message"),
    [
        ("aperture", 0.0, ValueError, "aperture must be .* got 0"),
        ("aperture", -2.0, ValueError, "aperture must be .* got -2"),
        ("aperture", float("nan"), ValueError, "aperture must be .* got nan"),
        ("aperture", float("inf"), ValueError, "aperture must be finite"),
        ("aperture", 1e160, ValueError, "aperture (1e[+]160 is too large|.*overflows).* scale"),
        ("aperture", "wide", TypeError, "aperture must be a number, got 'wide'"),
        ("regularization", 0.0, ValueError, "regularization must be .* got 0"),
        ("regularization", -1e-3, ValueError, "regularization must be .* got -0.001"),
        ("warn_at_quota", 1.5, ValueError, "warn_at_quota must be .* got 1.5"),
        ("solution", "fast", ValueError, r"solution must be .*'simplified'.* got 'fast'"),
        ("weighting", "fair", ValueError, r"weighting must be one of .*'tasks'\], got 'fair'"),
        ("activation", "step", ValueError, r"activation must be one of .*'relu', .* got 'step'"),
        ("lift", -1, ValueError, "lift must be at least 0, got -1"),
        ("lift", 2.5, TypeError, "lift must be a whole number, got 2.5"),
        ("gradient", "fast", ValueError, "gradient must be 'simplified' or 'exact', got 'fast'"),
        ("learning_rate", "fast", ValueError, "positive number or 'auto', got 'fast'"),
        ("learning_rate", 0.0, ValueError, "learning_rate must be .* got 0"),
        ("batch_size", 0, ValueError, "batch_size must be at least 1, got 0"),
        ("epochs", 2.5, TypeError, "epochs must be a whole number, got 2.5"),
        ("evidence", "none", ValueError, "evidence must be 'both'.* got 'none'"),
        ("quota", 0.0, ValueError, "quota must be .* got 0"),
    ],
)
@pytest.mark.parametrize("fitted", [False, True])
def test_bad_parameters_are_refused(
    parameter: str, value: Any, error: type[Exception], message: str, fitted: bool
) -> None:
    concerned = [clone(e) for e in ESTIMATORS if parameter in e.get_params()]
    assert concerned
    for estimator in concerned:
        if parameter == "quota" and estimator.aperture is not None:
            continue
        X, y = data(estimator)
        if fitted:
            estimator.fit(X, y)
        estimator.set_params(**{parameter: value})
        learn = estimator.partial_fit if hasattr(estimator, "partial_fit") else estimator.fit
        assert_refused(estimator, partial(learn, X, y), error, message)


def spoiled(X: Array, value: float) -> Array:
    X = X.copy()
    X[3, 1] = value
    return X


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=name)
@pytest.mark.parametrize("fitted", [False, True])
def test_bad_data_is_refused(estimator: BaseEstimator, fitted: bool) -> None:
    estimator = clone(estimator)
    X, y = data(estimator)
    if fitted:
        estimator.fit(X, y)
    for inputs, targets, message in [
        (spoiled(X, np.nan), y, "NaN"),
        (spoiled(X, np.inf), y, "infinity"),
        (spoiled(X, 1e200), y, r"X reaches 1e\+200.*scale it"),
        (X[:10], y, "inconsistent numbers of samples"),
        (X[:0], y[:0], "0 sample"),
        (X[0], y, "Expected 2D array"),
        (X[:, :, None], y, "dim 3"),
    ]:
        assert_refused(estimator, partial(estimator.fit, inputs, targets), ValueError, message)
    if fitted:
        np.testing.assert_array_equal(estimator.predict(X), clone(estimator).fit(X, y).predict(X))


@pytest.mark.parametrize("estimator", LEARNERS, ids=name)
def test_a_later_task_must_fit_the_earlier_ones(estimator: BaseEstimator) -> None:
    estimator = clone(estimator).partial_fit(*data(estimator))
    X, y = data(estimator, dim=5)
    assert_refused(estimator, lambda: estimator.partial_fit(X, y), ValueError, "5 features.* 4 ")
    estimator.set_params(fit_intercept=not estimator.fit_intercept)
    assert_refused(
        estimator,
        lambda: estimator.partial_fit(*data(estimator)),
        ValueError,
        "fit_intercept=.* differs .* set it back",
    )


@pytest.mark.parametrize("estimator", IN_TURN, ids=name)
def test_a_memory_warning_made_an_error_undoes_the_task(estimator: BaseEstimator) -> None:
    estimator = clone(estimator).set_params(warn_at_quota=0.5, aperture=30.0)
    estimator.fit(*data(estimator))
    assert_refused(
        estimator,
        lambda: estimator.partial_fit(*data(estimator, seed=1)),
    
        "memory is nearly full after 2 tasks",
    )
