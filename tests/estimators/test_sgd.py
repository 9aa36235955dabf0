"""Conceptor-aided SGD converges to the closed forms of the ridge estimators."""

from typing import Any

import numpy as np
import pytest

from conceptors import ConceptorRidge, ConceptorSGDRegressor
from estimators.common import tasks, weights

COMMON: dict[str, Any] = {"aperture": 2.0, "regularization": 0.05}
both_gradients = pytest.mark.parametrize("gradient", ["exact", "simplified"])
SOLUTION = {"exact": "paper", "simplified": "simplified"}  # where a gradient leads


def distance(sgd: ConceptorSGDRegressor, reg: ConceptorRidge) -> float:
    """Largest difference of a weight, in units of the largest weight."""
    return float(np.abs(weights(sgd) - weights(reg)).max() / np.abs(reg.coef_).max())


@both_gradients
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_full_batches_reach_the_closed_form(gradient: str, fit_intercept: bool) -> None:
    common = {**COMMON, "fit_intercept": fit_intercept}
    options: dict[str, Any] = {"batch_size": 80, "epochs": 3000}
    sgd = ConceptorSGDRegressor(**common, **options, gradient=gradient)
    reg = ConceptorRidge(**common, solution=SOLUTION[gradient])
    for X, y in tasks():
        sgd.partial_fit(X, y)
        reg.partial_fit(X, y)
        assert distance(sgd, reg) < 1e-6
        assert sgd.quota_ == pytest.approx(reg.quota_, rel=1e-12)


@both_gradients
def test_averaged_mini_batches_come_close(gradient: str) -> None:
    """Within 2 % of the largest weight."""
    options: dict[str, Any] = {**COMMON, "gradient": gradient, "batch_size": 16, "epochs": 400}
    sgd = ConceptorSGDRegressor(**options, random_state=0)
    reg = ConceptorRidge(**COMMON, solution=SOLUTION[gradient])
    for X, y in tasks():
        sgd.partial_fit(X, y)
        reg.partial_fit(X, y)
    assert distance(sgd, reg) < 0.02


@both_gradients
@pytest.mark.parametrize("batch_size", [1, 7, 32, 33, 1000])
def test_the_automatic_rate_is_stable(gradient: str, batch_size: int) -> None:
    """Also where the last batch of an epoch has one sample only, and with samples of any size."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(33, 60)) * rng.lognormal(size=(33, 1))
    sgd = ConceptorSGDRegressor(gradient=gradient, batch_size=batch_size, random_state=0)
    sgd.partial_fit(X, X @ rng.normal(size=60)).partial_fit(X, rng.normal(size=33))
    assert np.abs(sgd.coef_).max() < 10


def test_a_rate_too_large_is_refused_and_changes_nothing() -> None:
    first, second, _ = tasks()
    sgd = ConceptorSGDRegressor(random_state=0).fit(*first).set_params(learning_rate=1e3)
    before = sgd.coef_.copy()
    with pytest.raises(ValueError, match=r"diverged with learning_rate=1000.0; use a smaller one"):
        sgd.partial_fit(*second)
    np.testing.assert_array_equal(sgd.coef_, before)
    assert sgd.n_tasks_ == 1
