"""scikit-learn estimators that learn one task after another by conceptors."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conceptors import _checks as checks
from conceptors import ridge

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        validate_data,
    )
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None

Array = npt.NDArray[Any]


_SOLUTIONS = {"exact": ridge.increment, "simplified": ridge.simplified_increment}


class MemoryFullWarning(UserWarning):
    """The tasks learned so far claim nearly the whole input space."""


class ConceptorLinear(BaseEstimator):  # type: ignore[misc]
    """What all linear learners share: W, ΣR and the free space they leave.

    Fitted: `coef_`, `intercept_`, `quota_` (share of the input space claimed so far),
    `correlation_` (sum over tasks of E[b bᵀ], b = [x; 1] with an intercept), `n_tasks_`.
    """

    aperture: float
    regularization: float
    fit_intercept: bool
    warn_at_quota: float
    weights_: Array  # [m, d], the last column the intercept
    coef_: Array
    intercept_: Any  # [m], or a number

    def predict_linear(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(X @ self.weights_[:, : X.shape[1]].T + self.intercept_rows())

    def intercept_rows(self) -> Array:
        return self.weights_[:, -1] if self.fit_intercept else np.zeros(len(self.weights_))

    def free_space(self) -> Array:
        """F = ¬A `[d, d]` (or d + 1 with an intercept): what the next task may still use."""
        check_is_fitted(self)
        free = ridge.free_space(torch.from_numpy(self.correlation_), self.aperture)
        return np.asarray(free.numpy())

    def _check_parameters(self) -> None:
        checks.aperture(self.aperture, torch.Size(()), torch.zeros(1, dtype=torch.float64))
        limit = float(np.finfo(np.float64).max)
        checks.number(self.regularization, "regularization", 0.0, limit, open_low=True)
        checks.number(self.warn_at_quota, "warn_at_quota", 0.0, 1.0)

    def _inputs(self, X: Array) -> Tensor:
        """b = [x; 1] in rows, float64."""
        if self.fit_intercept:
            X = np.hstack([X, np.ones((len(X), 1))])
        return torch.from_numpy(np.ascontiguousarray(X, dtype=np.float64))

    def _memory(self, size: int, first: bool) -> tuple[Tensor, Tensor]:
        """(ΣR, F) of the tasks so far."""
        if first:
            zero = torch.zeros(size, size, dtype=torch.float64)
            return zero, torch.eye(size, dtype=torch.float64)
        total = torch.from_numpy(self.correlation_)
        return total, ridge.free_space(total, self.aperture)

    def _store(self, weights: Tensor, correlation: Tensor, n_tasks: int) -> None:
        """Set all fitted attributes, and say so when memory runs out."""
        free = ridge.free_space(correlation, self.aperture)
        self.weights_ = weights.numpy()
        self.correlation_ = correlation.numpy()
        self.quota_ = float(1 - free.diagonal().mean())
        self.n_tasks_ = n_tasks
        self._store_coefficients()

    def _store_coefficients(self) -> None:
        features = self.n_features_in_
        self.coef_ = self.weights_[:, :features]
        self.intercept_ = self.intercept_rows()

    def _warn_if_full(self) -> None:
        if self.quota_ >= self.warn_at_quota:
            warnings.warn(
                f"memory is nearly full after {self.n_tasks_} tasks: they claim "
                f"{self.quota_:.1%} of the input space (quota_ {self.quota_:.4f}, warning from "
                f"{self.warn_at_quota:g}). Further tasks can change little; lower the aperture "
                f"({self.aperture:g}), or use more features",
                MemoryFullWarning,
                stacklevel=3,
            )


class _ClosedForm(ConceptorLinear):
    """Learns a task from its second moments in closed form."""

    solution: str

    def __init__(
        self,
        aperture: float = 10.0,
        regularization: float = 1e-2,
        *,
        solution: str = "exact",
        fit_intercept: bool = True,
        warn_at_quota: float = 0.999,
    ) -> None:
        self.aperture = aperture
        self.regularization = regularization
        self.solution = solution
        self.fit_intercept = fit_intercept
        self.warn_at_quota = warn_at_quota

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.solution not in _SOLUTIONS:
            raise ValueError(f"solution must be one of {[*_SOLUTIONS]}, got {self.solution!r}")

    def _learn(self, X: Array, Y: Array, sample_weight: Array | None, first: bool) -> None:
        b, y = self._inputs(X), torch.from_numpy(np.ascontiguousarray(Y, dtype=np.float64))
        size = b.shape[1]
        total, free = self._memory(size, first)
        weighted = b
        if sample_weight is not None:
            share = sample_weight / sample_weight.sum()
            weighted = b * torch.from_numpy(share * len(b))[:, None]
        correlation = weighted.mT @ b / len(b)
        cross = y.mT @ weighted / len(b)
        weights = torch.zeros(y.shape[1], size, dtype=torch.float64)
        if not first:
            old = torch.from_numpy(self.weights_)
            weights[: len(old)] = old
        solve = _SOLUTIONS[self.solution]
        change = solve(correlation, cross, weights, free, self.regularization)
        tasks = 1 if first else self.n_tasks_ + 1
        self.increment_norm_ = float(change.norm())
        self._store(weights + change, total + correlation, tasks)


class RegressorShape(ConceptorLinear):
    """Targets `[n]` or `[n, m]`, and coefficients of the matching shape."""

    _flat: bool

    def _targets(self, y: Array, first: bool) -> Array:
        rows = y.reshape(len(y), -1)
        if not first and (rows.shape[1] != len(self.weights_) or (y.ndim == 1) != self._flat):
            raise ValueError(
                f"y of shape {list(y.shape)} does not fit earlier tasks, whose targets had "
                f"{'one column' if self._flat else f'shape [n, {len(self.weights_)}]'}"
            )
        self._flat = y.ndim == 1
        return rows

    def _store_coefficients(self) -> None:
        super()._store_coefficients()
        if self._flat:
            self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])

    def predict(self, X: Any) -> Array:
        """W [x; 1] for rows `[n, d]`."""
        rows = self.predict_linear(X)
        return rows[:, 0] if self._flat else rows


class ConceptorRidge(MultiOutputMixin, RegressorMixin, RegressorShape, _ClosedForm):  # type: ignore[misc]
    """Ridge regression that learns tasks one after another (section 2.2 of the report).

    Each call of `partial_fit` is one task. It changes the weights only in the space that earlier
    tasks left free: with A the OR of their conceptors and F = ¬A,

        W ← W + (K - W R) F (F R F + λ⁻² I)⁻¹,    A ← A ∨ C,

    where R = E[b bᵀ], K = E[y bᵀ] and b = [x; 1].

    Parameters:
        aperture: α > 0; larger protects more directions and fills memory faster.
        regularization: λ⁻² > 0, the ridge penalty on the change of the weights.
        solution: "exact" is section 2.2 as printed. "simplified" is where the report's simplified
            gradient (section 3.1) vanishes, W_inc = (K - W R) F (R F + λ⁻² I)⁻¹; it fits W b
            itself and is better wherever F is soft. At regularization = aperture⁻² it equals
            ridge regression on all tasks at once.
        fit_intercept: add a constant unit to the inputs (the report's bias unit).
        warn_at_quota: from this `quota_` on, `partial_fit` gives a `MemoryFullWarning`.

    Attributes:
        coef_, intercept_: the linear model after the last task.
        quota_: share of the input space claimed so far, in [0, 1].
        n_tasks_: number of tasks learned.
        correlation_: ΣR over the tasks, `[d, d]` (d + 1 with an intercept).
        increment_norm_: Frobenius norm of the last task's change of the weights.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X1, X2 = rng.normal(size=(2, 100, 4))
    >>> X1[:, 2:] = 0; X2[:, :2] = 0              # two tasks in different directions
    >>> y1, y2 = X1 @ [1, 2, 0, 0], X2 @ [0, 0, 3, 4]
    >>> reg = ConceptorRidge(aperture=10.0, regularization=1e-4, fit_intercept=False)
    >>> reg = reg.partial_fit(X1, y1).partial_fit(X2, y2)
    >>> reg.coef_.round(2)
    array([1., 2., 3., 4.])
    >>> reg.score(X1, y1) > 0.999, reg.n_tasks_
    (True, 2)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Forget everything and learn one task."""
        return self._fit(X, y, sample_weight, first=True)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn a further task without disturbing the earlier ones."""
        self._fit(X, y, sample_weight, first=not hasattr(self, "weights_"))
        self._warn_if_full()
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, first: bool) -> Self:
        self._check_parameters()
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=first
        )
        sample_weight = _checked_weights(sample_weight, X)
        self._learn(X, self._targets(y, first), sample_weight, first)
        return self


class ConceptorRidgeClassifier(ClassifierMixin, _ClosedForm):  # type: ignore[misc]
    """`ConceptorRidge` on one-hot targets: learns classes one task after another.

    New classes may come with any task. Parameters and attributes as in `ConceptorRidge`, and
    `classes_`.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> X = X / 16
    >>> clf = ConceptorRidgeClassifier(solution="simplified")
    >>> clf = clf.partial_fit(X[y < 5], y[y < 5]).partial_fit(X[y >= 5], y[y >= 5])
    >>> len(clf.classes_), bool(clf.score(X, y) > 0.9)
    (10, True)
    """

    classes_: Array

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Forget everything and learn one task."""
        return self._fit(X, y, None, sample_weight, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn a further task; `classes` may name classes that come later."""
        self._fit(X, y, classes, sample_weight, first=not hasattr(self, "weights_"))
        self._warn_if_full()
        return self

    def decision_function(self, X: Any) -> Array:
        """Outputs of all classes `[n, classes]`; `[n]` for two classes."""
        rows = self.predict_linear(X)
        return rows[:, 1] - rows[:, 0] if len(self.classes_) == 2 else rows

    def predict(self, X: Any) -> Array:
        """The class of the largest output."""
        rows = self.predict_linear(X)
        return np.asarray(self.classes_[rows.argmax(1)])

    def _fit(self, X: Any, y: Any, classes: Any, sample_weight: Any, first: bool) -> Self:
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        sample_weight = _checked_weights(sample_weight, X)
        named = np.unique(y if classes is None else classes)
        if missing := set(np.unique(y).tolist()) - set(named.tolist()):
            raise ValueError(f"y has classes {sorted(missing)} that are not in classes={classes}")
        known = named
        if not first:  # weights keep their rows: known classes first, new ones after them
            known = np.concatenate([self.classes_, np.setdiff1d(named, self.classes_)])
        order = np.argsort(known, kind="stable")
        targets = (y[:, None] == known[None, :]).astype(np.float64)
        self._learn(X, targets, sample_weight, first)
        self.weights_ = self.weights_[order]
        self.classes_ = known[order]
        self._store_coefficients()
        return self


def _checked_weights(sample_weight: Any, X: Array) -> Array | None:
    if sample_weight is None:
        return None
    checked = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if checked.sum() <= 0:
        raise ValueError("sample_weight sums to 0; at least one sample needs a positive weight")
    return np.asarray(checked)
