"""Inputs of any size, sparse ones, tables with names, and random features of all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import sparse  # type: ignore[import-untyped]
from sklearn.base import clone
from sklearn.utils import validation

from conceptors import ConceptorRidge, ConceptorRidgeClassifier, Readout
from conceptors.estimators import ridge as rows
from estimators.common import Digits, tasks, weights

Array = npt.NDArray[Any]
LIFTS: list[dict[str, Any]] = [
    {},
    {"lift": 300},
    {"lift": 300, "activation": "tanh"},
    {"lift": 300, "activation": "fourier"},
]
lifts = pytest.mark.parametrize("settings", LIFTS, ids=str)


def one_by_one(digits: Digits, X: Array, **settings: Any) -> ConceptorRidgeClassifier:
    """Digits learned one class a task."""
    clf = ConceptorRidgeClassifier(**settings)
    for digit in range(10):
        task = digits.train[digits.y[digits.train] == digit]
        clf.partial_fit(X[task], digits.y[task])
    return clf


@pytest.mark.parametrize("lift", [0, 100])
def test_columns_of_very_different_scales_are_reported_once(lift: int) -> None:
    X = np.random.default_rng(0).normal(size=(200, 10)) * np.logspace(-8, 8, 10)
    y = (np.sign(X).sum(1) > 0).astype(int)
    readout, clf = Readout(10, lift), ConceptorRidgeClassifier(lift=lift)
    learners: list[Callable[[Array, Array], Any]] = [
        lambda X, y: readout.learn(torch.tensor(X), torch.tensor(y)),
        lambda X, y: readout.fresh().learn(torch.tensor(X), torch.tensor(y)),
        clf.partial_fit,
    ]
    for learn in (learners[0], learners[2]):
        with pytest.warns(UserWarning, match=r"factor of 1e\+16.*StandardScaler") as told:
            learn(X, y)
        assert len(told) == 1
        assert told[0].filename == __file__
    for learn in learners:
        learn(X, y)  # warnings are errors


@pytest.mark.parametrize("lift", [0, 100])
@pytest.mark.parametrize("first", [1, 2, 5000])
def test_sparse_and_constant_columns_are_no_cause_for_a_warning(lift: int, first: int) -> None:
    """Like the pixels at the border of MNIST: a grey level of 1 in one image of thousands."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (5000, 40)) / 255 * (rng.random((5000, 40)) < np.logspace(-5, 0, 40))
    X[-1, :10] = 1 / 255
    X[:, 10] = 1e9 / 3  # constant but for rounding
    X[::2, 10] *= 1 + 1e-16
    y = rng.integers(0, 2, 5000)
    y[:2] = 0, 1
    Readout(40, lift).learn(torch.tensor(X[:first]), torch.tensor(y[:first]))
    ConceptorRidgeClassifier(lift=lift).partial_fit(X[:first], y[:first])


@lifts
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_units_do_not_matter(
    digits: Digits, settings: dict[str, Any], scale: float, offset: float
) -> None:
    X = scale * (digits.X + offset)
    score = one_by_one(digits, X, **settings).score(X[digits.test], digits.y[digits.test])
    assert score > (0.96 if settings else 0.93)
    plain = one_by_one(digits, digits.X, **settings)
    assert score == pytest.approx(
        plain.score(digits.X[digits.test], digits.y[digits.test]), abs=3e-3
    )


@lifts
def test_units_do_not_matter_in_regression(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = X @ [1.0, 2.0, 3.0] + (np.sin(2 * X[:, 0]) if settings else 0)
    scores = []
    for scale, offset in ((1.0, 0.0), (1e6, 1e7), (1e-6, -1e-5)):
        inputs, targets = scale * X + offset, scale * y + 1e3 * scale
        reg = ConceptorRidge(**settings).partial_fit(inputs[:100], targets[:100])
        reg.partial_fit(inputs[100:300], targets[100:300])
        scores.append(reg.score(inputs[300:], targets[300:]))
    assert min(scores) > 0.99
    assert max(scores) - min(scores) < 1e-3


def test_a_first_task_of_one_sample_tells_enough_of_units(digits: Digits) -> None:
    for settings in LIFTS:
        X = 1e6 * digits.X
        clf = ConceptorRidgeClassifier(**settings)
        clf.partial_fit(X[digits.train[:1]], digits.y[digits.train[:1]])
        assert set(clf.predict(X)) == {digits.y[digits.train[0]]}
        clf.partial_fit(X[digits.train[1:]], digits.y[digits.train[1:]])
        assert clf.score(X[digits.test], digits.y[digits.test]) > 0.92


def test_random_state_decides_the_features(digits: Digits) -> None:
    X, y = digits.X[:200], digits.y[:200]

    def scores(random_state: Any) -> Array:
        clf = ConceptorRidgeClassifier(lift=50, random_state=random_state).fit(X, y)
        assert clf.coef_.shape == (10, 50)
        return np.asarray(clf.decision_function(X))

    np.testing.assert_array_equal(scores(0), scores(0))
    np.testing.assert_array_equal(
        scores(np.random.RandomState(3)), scores(np.random.RandomState(3))
    )
    assert np.abs(scores(0) - scores(1)).max() > 1e-3
    assert np.isfinite(scores(None)).all()


def test_many_features_are_multiplied_in_single_precision_without_loss(digits: Digits) -> None:
    clf = one_by_one(digits, digits.X, lift=1000)
    X, y = digits.X[digits.test], digits.y[digits.test]
    assert clf.score(X, y) > 0.97
    reg = ConceptorRidge(lift=1000).fit(digits.X[digits.train], digits.Y[digits.train])
    once = ConceptorRidgeClassifier(lift=1000).fit(digits.X[digits.train], digits.y[digits.train])
    assert (once.predict(X) == reg.predict(X).argmax(1)).mean() > 0.995


@pytest.mark.parametrize("lift", [0, 40])
@pytest.mark.parametrize("solution", ["joint", "paper", "simplified"])
def test_sparse_is_dense(
    digits: Digits, solution: str, lift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_ROWS", 128)  # several parts, whose sums add up
    X, y = digits.X * (digits.X > 0.5), digits.y
    settings: dict[str, Any] = {"solution": solution, "lift": lift}
    dense, thin = (ConceptorRidgeClassifier(**settings) for _ in range(2))
    for task in (digits.train[:500], digits.train[500:]):
        weight = 1 + np.arange(len(task)) % 3
        dense.partial_fit(X[task], y[task], sample_weight=weight)
        thin.partial_fit(sparse.csc_array(X[task]), y[task], sample_weight=weight)
    np.testing.assert_allclose(weights(thin), weights(dense), rtol=0, atol=1e-10)
    np.testing.assert_allclose(
        thin.decision_function(sparse.csr_matrix(X)), dense.decision_function(X), atol=1e-9
    )


def test_sparse_rows_are_never_dense_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    make_dense = rows._dense

    def noted(X: Any) -> Any:
        seen.append(X.shape[0])
        return make_dense(X)

    monkeypatch.setattr(rows, "_dense", noted)
    X = sparse.random_array((20_000, 30), density=0.05, rng=np.random.default_rng(0), format="csr")
    y = np.asarray(X @ np.arange(30.0))
    for settings in LIFTS:
        reg = ConceptorRidge(**settings).fit(X, y)
        assert reg.score(X, y) > 0.9
    assert max(seen) <= 8192
    assert len(seen) > 6


class Table:
    """As little of a data frame as is needed: values and names of columns."""

    def __init__(self, values: Array, names: str) -> None:
        self.values, self.columns = values, np.array([*names], dtype=object)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.values if dtype is None else self.values.astype(dtype)


@pytest.mark.parametrize("estimator", [ConceptorRidge(), ConceptorRidgeClassifier(lift=20)])
def test_tables_keep_their_names(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # How scikit-learn knows the names of libraries that need not be installed here.
    monkeypatch.setattr(validation, "_get_feature_names", lambda X: getattr(X, "columns", None))
    X, y = tasks()[0][0], np.arange(20) % 2
    fitted = estimator.partial_fit(Table(X, "abcde"), y)
    assert fitted.feature_names_in_.tolist() == [*"abcde"]
    np.testing.assert_array_equal(
        fitted.predict(Table(X, "abcde")),
        clone(estimator).fit(X, y).predict(X),
    )
    for learn in (lambda table: fitted.partial_fit(table, y), fitted.predict):
        with pytest.raises(ValueError, match="feature names"):
            learn(Table(X, "edcba"))
    assert fitted.n_tasks_ == 1


@lifts
@pytest.mark.parametrize("weighting", ["samples", "tasks"])
def test_bad_input_changes_nothing(settings: dict[str, Any], weighting: str) -> None:
    X, y = tasks()[0]
    reg = ConceptorRidge(**settings, weighting=weighting).partial_fit(X, y, task="a")
    bad = X.copy()
    bad[-1, 2] = 1e200
    before = weights(reg), reg.quota_, copy.deepcopy(reg).partial_fit(X, y, task="a").coef_
    for inputs, targets, weight, message in [
        (bad, y, None, r"X reaches 1e\+200: its squares overflow; scale it"),
        (sparse.csr_array(bad), y, None, r"X reaches 1e\+200"),
        (X * np.nan, y, None, "NaN"),
        (X[:, :3], y, None, "3 features"),
        (X, y[:, 0], None, r"y of shape \[20\] does not fit"),
        (X, y * 1e200, None, r"y reaches .*e\+200: its squares overflow; scale it"),
        (X, y, -np.ones(len(X)), "Negative values"),
    ]:
        with pytest.raises(ValueError, match=message):
            reg.partial_fit(inputs, targets, weight, task="a")
    with pytest.raises(TypeError, match=r"task must be a name, .* got \['a'\]"):
        reg.partial_fit(X, y, task=["a"])  # type: ignore[arg-type]
    np.testing.assert_array_equal(weights(reg), before[0])
    assert (reg.quota_, reg.n_tasks_) == (before[1], 1)
    np.testing.assert_array_equal(reg.partial_fit(X, y, task="a").coef_, before[2])


def test_the_same_lift_must_go_on() -> None:
    X, y = tasks()[0]
    reg = ConceptorRidge(lift=20).fit(X, y)
    for change in ({"lift": 30}, {"activation": "tanh"}, {"solution": "paper"}):
        with pytest.raises(ValueError, match=f"{next(iter(change))}=.* differs .* set it back"):
            copy.deepcopy(reg).set_params(**change).partial_fit(X, y)
    assert reg.partial_fit(X, y).n_tasks_ == 2


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_inputs_that_never_vary_are_learned(value: float, fit_intercept: bool) -> None:
    X, y = np.full((10, 2), value), np.arange(10.0)
    reg = ConceptorRidge(fit_intercept=fit_intercept).fit(X, y)
    wanted = y.mean() if fit_intercept or value else 0.0
    np.testing.assert_allclose(reg.predict(X), wanted, rtol=0.1)


def test_weights_that_sum_to_little_do_not_hide_data() -> None:
    X, y = tasks(outputs=None)[2]
    y = X @ np.arange(5.0) + 0.01 * y
    plain = ConceptorRidge().fit(X, y)
    light = ConceptorRidge().fit(X, y, sample_weight=np.full(len(X), 1e-6))
    np.testing.assert_allclose(light.coef_, plain.coef_, rtol=0, atol=1e-9)
