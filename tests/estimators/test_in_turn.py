"""Ridge regression of tasks in turn: section 2.2 and its three promises on real digits."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

from conceptors import Conceptor, ConceptorRidge, ConceptorRidgeClassifier
from conceptors.estimators import MemoryFullWarning
from estimators.common import Digits, Task, tasks, weights, with_bias

Array = npt.NDArray[Any]

# Where each solution keeps old tasks and still has room for new ones, on digits in [0, 1].
SETTINGS: list[dict[str, Any]] = [
    {"solution": "paper", "aperture": 30.0, "regularization": 1e-2},
    {"solution": "simplified", "aperture": 10.0, "regularization": 1e-2},
]
both_solutions = pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: str(s["solution"]))


# --- the algorithm -----------------------------------------------------------------------


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("outputs", [None, 2])
def test_partial_fit_is_section_2_2(fit_intercept: bool, outputs: int | None) -> None:
    alpha, regularization = 2.0, 0.03
    reg = ConceptorRidge(alpha, regularization, solution="paper", fit_intercept=fit_intercept)
    N = 6 if fit_intercept else 5
    W, A, total = np.zeros((outputs or 1, N)), Conceptor.zero(N), np.zeros((N, N))
    for j, (rows, y) in enumerate(tasks(outputs=outputs), 1):
        X, Y, n = with_bias(rows, fit_intercept).T, y.reshape(len(y), -1).T, len(rows)
        R = X @ X.T / n
        F = (~A).matrix().numpy()
        T, S = Y - W @ X, F @ X
        W_inc = (np.linalg.inv(S @ S.T / n + regularization * np.eye(N)) @ S @ T.T / n).T
        W, total = W + W_inc, total + R
        A = A | Conceptor.from_correlation(torch.tensor(R), alpha)

        reg.partial_fit(rows, y)
        np.testing.assert_allclose(weights(reg), W, rtol=0, atol=1e-10)
        np.testing.assert_allclose(reg.free_space(), (~A).matrix(), rtol=0, atol=1e-10)
        np.testing.assert_allclose(reg.correlation_, total, rtol=1e-13, atol=1e-13)
        assert reg.quota_ == pytest.approx(float(A.quota), abs=1e-12)
        assert reg.increment_norm_ == pytest.approx(np.linalg.norm(W_inc), abs=1e-10)
        assert reg.n_tasks_ == j
        assert reg.coef_.shape == ((5,) if outputs is None else (2, 5))
        assert np.shape(reg.intercept_) == (() if outputs is None else (2,))
        assert reg.predict(rows).shape == y.shape
        np.testing.assert_allclose(reg.predict(rows), (W @ X).T.reshape(y.shape), atol=1e-10)


@pytest.mark.parametrize("solution", ["paper", "simplified"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_the_first_task_is_plain_ridge(solution: str, fit_intercept: bool) -> None:
    X, y = tasks()[0]
    weight = np.random.default_rng(0).uniform(0, 3, len(X))
    inputs = with_bias(X, fit_intercept)
    for sample_weight, size in ((None, len(X)), (weight, weight.sum())):
        wanted = Ridge(alpha=size * 0.05, fit_intercept=False).fit(inputs, y, sample_weight)
        reg = ConceptorRidge(regularization=0.05, solution=solution, fit_intercept=fit_intercept)
        np.testing.assert_allclose(
            weights(reg.fit(X, y, sample_weight)), wanted.coef_, rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("aperture", [0.5, 3.0, 40.0])
def test_simplified_at_equal_penalties_is_joint_ridge(aperture: float, fit_intercept: bool) -> None:
    """A theorem: at regularization = aperture⁻² no task is forgotten, and none is favoured.

    Every task counts the same, whatever its size: samples weigh 1/n.
    """
    reg = ConceptorRidge(
        aperture, aperture**-2, solution="simplified", fit_intercept=fit_intercept, warn_at_quota=1
    )
    seen: list[Task] = []
    for task in tasks(count=6):
        reg.partial_fit(*task)
        seen.append(task)
        X, Y = (np.concatenate(part) for part in zip(*seen))
        share = np.concatenate([np.full(len(x), 1 / len(x)) for x, _ in seen])
        joint = Ridge(alpha=aperture**-2, fit_intercept=False)
        joint.fit(with_bias(X, fit_intercept), Y, sample_weight=share)
        np.testing.assert_allclose(weights(reg), joint.coef_, rtol=0, atol=1e-8)


@pytest.mark.parametrize("solution", ["joint", "paper", "simplified"])
def test_integer_sample_weights_are_repeated_samples(solution: str) -> None:
    (X1, y1), (X2, y2), _ = tasks()
    times = np.random.default_rng(0).integers(0, 4, len(X2))
    weighted = ConceptorRidge(solution=solution).partial_fit(X1, y1).partial_fit(X2, y2, times)
    repeated = ConceptorRidge(solution=solution).partial_fit(X1, y1)
    repeated.partial_fit(np.repeat(X2, times, 0), np.repeat(y2, times, 0))
    np.testing.assert_allclose(weights(weighted), weights(repeated), rtol=0, atol=1e-10)
    assert weighted.quota_ == pytest.approx(repeated.quota_, abs=1e-12)


def test_an_aperture_changed_between_tasks_counts_for_all_of_them() -> None:
    (X1, y1), (X2, y2), _ = tasks()
    reg = ConceptorRidge(1.0, solution="paper").partial_fit(X1, y1).set_params(aperture=4.0)
    wanted = ConceptorRidge(4.0, solution="paper").partial_fit(X1, y1)
    np.testing.assert_array_equal(reg.free_space(), wanted.free_space())
    np.testing.assert_array_equal(reg.partial_fit(X2, y2).coef_, wanted.partial_fit(X2, y2).coef_)


def test_a_huge_aperture_shields_old_tasks_completely() -> None:
    rng = np.random.default_rng(0)
    plane = rng.normal(size=(2, 6))
    X1, X2 = rng.normal(size=(30, 2)) @ plane, rng.normal(size=(40, 6))
    y1, y2 = rng.normal(size=30), rng.normal(size=40)
    reg = ConceptorRidge(1e8, 1e-6, solution="paper", fit_intercept=False, warn_at_quota=1)
    reg.partial_fit(X1, y1)
    before = reg.predict(X1)
    np.testing.assert_allclose(reg.partial_fit(X2, y2).predict(X1), before, atol=1e-6)


# --- the three promises, on real digits --------------------------------------------------


@both_solutions
def test_a_new_task_does_not_disturb_the_old(digits: Digits, settings: dict[str, Any]) -> None:
    """Digits 0-4, then 5-9; and digits, then digits of permuted pixels."""
    small, large = (
        digits.train[digits.y[digits.train] < 5],
        digits.train[digits.y[digits.train] > 4],
    )
    old = digits.test[digits.y[digits.test] < 5]
    new = digits.test[digits.y[digits.test] > 4]
    X, Y = digits.X, digits.Y

    def error(reg: ConceptorRidge) -> float:
        return float(np.square(reg.predict(X[small]) - Y[small]).mean())

    reg = ConceptorRidge(**settings).partial_fit(X[small], Y[small])
    assert digits.accuracy(reg, X, old) > 0.98
    learned = error(reg)
    reg.partial_fit(X[large], Y[large])
    assert digits.accuracy(reg, X, old) > 0.95
    assert digits.accuracy(reg, X, new) > 0.8
    plain = ConceptorRidge(**settings).fit(X[large], Y[large])
    assert digits.accuracy(plain, X, old) < 0.05  # it never answers 0-4 again
    assert error(reg) - learned < 0.12 * (error(plain) - learned)

    shuffled, train = digits.permuted(1), digits.train
    reg = ConceptorRidge(**settings).partial_fit(X[train], Y[train])
    reg.partial_fit(shuffled[train], Y[train])
    assert digits.accuracy(reg, X, digits.test) > 0.9
    plain = ConceptorRidge(**settings).fit(shuffled[train], Y[train])
    assert digits.accuracy(plain, X, digits.test) < 0.3


@both_solutions
def test_what_is_similar_costs_less(digits: Digits, settings: dict[str, Any]) -> None:
    X, Y = digits.X[digits.train], digits.Y[digits.train]
    noise = 0.05 * np.random.default_rng(0).normal(size=X.shape)
    change, rise = {}, {}
    for kind, inputs in {
        "same": X,
        "noised": X + noise,
        "permuted": digits.permuted(1)[digits.train],
    }.items():
        reg = ConceptorRidge(**settings).partial_fit(X, Y)
        claimed = reg.quota_
        reg.partial_fit(inputs, Y)
        change[kind], rise[kind] = reg.increment_norm_, reg.quota_ - claimed
    assert change["same"] < change["noised"] < 0.5 * change["permuted"]
    assert rise["same"] < rise["noised"] < rise["permuted"]
    assert rise["same"] < 0.5 * rise["permuted"]


@both_solutions
def test_quota_tells_when_memory_runs_out(digits: Digits, settings: dict[str, Any]) -> None:
    """Each permutation of the pixels is a new task; at aperture 30 there is room for two."""
    settings = settings | {"aperture": 30.0, "warn_at_quota": 0.9}
    reg = ConceptorRidge(**settings)
    inputs = [digits.X, *(digits.permuted(seed) for seed in (1, 2, 3))]
    quotas, accuracies, warned = [], [], []
    for X in inputs:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reg.partial_fit(X[digits.train], digits.Y[digits.train])
        quotas.append(reg.quota_)
        accuracies.append(digits.accuracy(reg, X, digits.test))
        warned.append([str(w.message) for w in caught if w.category is MemoryFullWarning])
        assert all(w.filename == __file__ for w in caught)
    assert quotas == sorted(quotas)
    assert quotas[0] < 0.9 < quotas[1]
    assert [len(messages) for messages in warned] == [0, 1, 1, 1]
    assert "memory is nearly full after 2 tasks" in warned[1][0]
    assert f"quota_ {quotas[1]:.4f}" in warned[1][0]
    assert "lower the aperture (30), or use more features" in warned[1][0]
    assert accuracies[0] > 0.93
    assert max(accuracies[2:]) < 0.6  # learned poorly, as the warning said


@pytest.mark.parametrize("solution", ["paper", "simplified"])
def test_no_warning_below_the_threshold_and_none_from_fit(solution: str) -> None:
    (X, y), *_ = tasks()
    reg = ConceptorRidge(solution=solution, warn_at_quota=0.5).fit(X, y)  # warnings are errors here
    assert reg.quota_ > 0.5
    ConceptorRidge(solution=solution, warn_at_quota=1.0).partial_fit(X, y).partial_fit(X, y)
    with pytest.warns(MemoryFullWarning, match=r"after 1 task: they claim .*warning from 0.5"):
        ConceptorRidge(solution=solution, warn_at_quota=0.5).partial_fit(X, y)


def test_the_joint_solution_has_no_memory_to_fill() -> None:
    (X, y), *_ = tasks()
    reg = ConceptorRidge(100.0, warn_at_quota=0.5).partial_fit(X, y)  # warnings are errors here
    assert reg.quota_ > 0.99


# --- refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample_weight", "message"),
    [
        (-np.ones(20), "Negative values"),
        (np.zeros(20), "at least one"),
        (np.ones(3), r"sample_weight.*\(3,\)"),
        (np.full(20, np.nan), "NaN"),
    ],
)
@pytest.mark.parametrize("kind", [ConceptorRidge, ConceptorRidgeClassifier])
def test_bad_sample_weights_leave_no_trace(kind: Any, sample_weight: Array, message: str) -> None:
    X, y = tasks()[0][0], np.arange(20) % 3
    fresh, fitted = kind(), kind().fit(X, y)
    coefficients = fitted.coef_.copy()
    for model in (fresh, fitted):
        with pytest.raises(ValueError, match=message):
            model.partial_fit(X, y, sample_weight=sample_weight)
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    assert fitted.n_tasks_ == 1
    np.testing.assert_array_equal(fitted.coef_, coefficients)


def test_targets_of_another_shape_are_refused() -> None:
    X, y = tasks(outputs=2)[0]
    reg = ConceptorRidge().fit(X, y)
    for other in (y[:, 0], y[:, :1], np.hstack([y, y])):
        with pytest.raises(ValueError, match=r"y of shape .* whose y had shape \[n, 2\]; give y"):
            reg.partial_fit(X, other)
    assert reg.n_tasks_ == 1
    flat = ConceptorRidge().fit(X, y[:, 0])
    with pytest.raises(ValueError, match=r"y of shape \[20, 1\] .* whose y had shape \[n\]"):
        flat.partial_fit(X, y[:, :1])
    assert np.ndim(flat.intercept_) == 0
    assert flat.predict(X).shape == (20,)


def test_a_regularization_below_rounding_is_refused() -> None:
    X = np.ones((10, 3))
    y = np.arange(10.0)
    with pytest.raises(ValueError, match="regularization 1e-30 is too small"):
        ConceptorRidge(regularization=1e-30, solution="paper").fit(X, y)
    reg = ConceptorRidge(regularization=1e-30).fit(X, y)  # solved when it is asked for
    with pytest.raises(ValueError, match=r"regularization 1e-30 is too small .* or let it be"):
        reg.predict(X)
