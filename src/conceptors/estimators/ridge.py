"""scikit-learn estimators that learn one task after another by conceptors."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors.estimators import closed_form

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets, unique_labels
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None

Array = npt.NDArray[Any]

_SOLUTIONS = {"exact": closed_form.increment, "simplified": closed_form.simplified_increment}


class MemoryFullWarning(UserWarning):
    """The tasks learned so far claim nearly the whole input space."""


@contextmanager
def all_or_nothing(estimator: BaseEstimator) -> Iterator[None]:
    """Put every attribute back if anything raises. Fitted arrays are replaced, never written to."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def input_rows(X: Array, fit_intercept: bool) -> Tensor:
    """x, or b = [x; 1] with an intercept, in rows: float64, a copy (X may be read-only)."""
    if fit_intercept:
        X = np.hstack([X, np.ones((len(X), 1))])
    rows = torch.tensor(X, dtype=torch.float64)
    if not bool(torch.isfinite(rows.square().sum())):
        raise ValueError(f"X reaches {float(rows.abs().max()):.3g}: its squares overflow; scale it")
    return rows


class Task(NamedTuple):
    """What a task gives, with b = [x; 1] in rows."""

    inputs: Tensor  # b [n, d]
    targets: Tensor  # y [n, m]
    correlation: Tensor  # R = E[b bᵀ] [d, d]
    cross: Tensor  # K = E[y bᵀ] [m, d]


class ConceptorLinear(BaseEstimator):  # type: ignore[misc]
    """What all linear learners share: W, ΣR and the free space they leave.

    Fitted: `coef_`, `intercept_`, `quota_` (share of the input space claimed so far),
    `correlation_` (sum over tasks of E[b bᵀ], b = [x; 1] with an intercept), `n_tasks_`,
    `increment_norm_`.
    """

    aperture: float
    regularization: float
    fit_intercept: bool
    warn_at_quota: float
    coef_: Array  # [m, d] or [d]
    intercept_: Any  # [m] or a number
    correlation_: Array
    n_tasks_: int

    def free_space(self) -> Array:
        """F = ¬A `[d, d]` (or d + 1 with an intercept): what the next task may still use."""
        check_is_fitted(self)
        return np.asarray(closed_form.free_space(torch.tensor(self.correlation_), self.aperture))

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(X @ self.coef_.T + self.intercept_)

    def _check_parameters(self) -> None:
        checks.aperture(self.aperture, torch.Size(()), torch.zeros(1, dtype=torch.float64))
        limit = float(np.finfo(np.float64).max)
        checks.number(self.regularization, "regularization", 0.0, limit, open_low=True)
        checks.number(self.warn_at_quota, "warn_at_quota", 0.0, 1.0)

    def _learn(
        self, X: Array, Y: Array, sample_weight: Array | None, known: Any, first: bool
    ) -> None:
        """Learn targets Y `[n, m]`; `known` says which of the m outputs earlier tasks had."""
        inputs, targets = input_rows(X, self.fit_intercept), torch.tensor(Y, dtype=torch.float64)
        size = inputs.shape[1]
        previous = torch.zeros(targets.shape[1], size, dtype=torch.float64)
        total = torch.zeros(size, size, dtype=torch.float64)
        free = torch.eye(size, dtype=torch.float64)
        if not first:
            if len(self.correlation_) != size:
                raise ValueError(
                    f"fit_intercept={self.fit_intercept} differs from the earlier tasks; set it "
                    f"back, or forget them with fit"
                )
            previous[known] = self._weights()
            total = torch.tensor(self.correlation_)
            free = closed_form.free_space(total, self.aperture)
        weighted, n = inputs, len(inputs)
        if sample_weight is not None:
            weighted = inputs * torch.tensor(sample_weight / sample_weight.mean())[:, None]
        task = Task(inputs, targets, weighted.mT @ inputs / n, targets.mT @ weighted / n)
        total = total + task.correlation
        weights = self._solve(task, previous, free)
        claimed = 1 - closed_form.free_space(total, self.aperture).diagonal().mean()
        self.increment_norm_ = float((weights - previous).norm())
        self.correlation_ = total.numpy()
        self.quota_ = float(claimed)
        self.n_tasks_ = 1 if first else self.n_tasks_ + 1
        self.coef_ = weights[:, : X.shape[1]].numpy()
        self.intercept_ = weights[:, -1].numpy() if self.fit_intercept else np.zeros(len(weights))

    def _weights(self) -> Tensor:
        """W so far, `[m, d]`, with an intercept `[m, d + 1]`."""
        columns = [np.atleast_2d(self.coef_)]
        if self.fit_intercept:
            columns.append(np.reshape(self.intercept_, (-1, 1)))
        return torch.tensor(np.hstack(columns))

    @abstractmethod
    def _solve(self, task: Task, previous: Tensor, free: Tensor) -> Tensor:
        """The weights `[m, d]` after the task."""

    def _warn_if_full(self) -> None:
        if self.quota_ >= self.warn_at_quota:
            tasks = "1 task" if self.n_tasks_ == 1 else f"{self.n_tasks_} tasks"
            warnings.warn(
                f"memory is nearly full after {tasks}: they claim "
                f"{self.quota_:.1%} of the input space (quota_ {self.quota_:.4f}, warning from "
                f"{self.warn_at_quota:g}). Further tasks can change little; lower the aperture "
                f"({self.aperture:g}), or use more features",
                MemoryFullWarning,
                stacklevel=3,
            )


class ConceptorRegressor(MultiOutputMixin, RegressorMixin, ConceptorLinear):  # type: ignore[misc]
    """Targets `[n]` or `[n, m]`, and coefficients of the matching shape."""

    def predict(self, X: Any) -> Array:
        """W [x; 1] for rows `[n, d]`."""
        return self._outputs(X)

    def _fit(self, X: Any, y: Any, sample_weight: Any, first: bool) -> Self:
        self._check_parameters()
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=first
        )
        if not first and y.shape[1:] != self.coef_.shape[:-1]:
            earlier = ["n", *map(str, self.coef_.shape[:-1])]
            raise ValueError(
                f"y of shape {list(y.shape)} does not fit the earlier tasks, whose y had shape "
                f"[{', '.join(earlier)}]; give y that shape, or forget them with fit"
            )
        self._learn(X, y.reshape(len(y), -1), checked_weights(sample_weight, X), ..., first)
        if y.ndim == 1:
            self.coef_, self.intercept_ = self.coef_[0], float(self.intercept_[0])
        return self


class _ClosedForm(ConceptorLinear):
    """Learns a task from its second moments in closed form."""

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

    def _solve(self, task: Task, previous: Tensor, free: Tensor) -> Tensor:
        solve = _SOLUTIONS[self.solution]
        change = solve(task.correlation, task.cross, previous, free, self.regularization)
        return previous + change


class ConceptorRidge(ConceptorRegressor, _ClosedForm):
    """Ridge regression that learns tasks one after another (section 2.2 of the paper).

    Each call of `partial_fit` is one task. It changes the weights only in the space that earlier
    tasks left free: with A the OR of their conceptors and F = ¬A,

        W ← W + (K - W R) F (F R F + λ⁻² I)⁻¹,    A ← A ∨ C,

    where R = E[b bᵀ], K = E[y bᵀ] and b = [x; 1].

    Parameters:
        aperture: α > 0; larger protects more directions and fills memory faster.
        regularization: λ⁻² > 0, the ridge penalty on the change of the weights.
        solution: "exact" is section 2.2 as printed. It fits W_inc F b but predicts with W_inc b, so
            that where F is soft a new task does disturb old ones: at these defaults, digits 0-4
            fall from 99 to 53 % when 5-9 are learned. "simplified" is where the paper's
            simplified gradient (section 3.1) vanishes, W_inc = (K - W R) F (R F + λ⁻² I)⁻¹; it
            fits W b itself (99 to 96 % there). At regularization = aperture⁻², as in the
            defaults, it equals ridge regression on all tasks at once, tasks counting equally.
        fit_intercept: add a constant unit to the inputs (the paper's bias unit).
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
        with all_or_nothing(self):
            return self._fit(X, y, sample_weight, first=True)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn a further task without disturbing the earlier ones."""
        with all_or_nothing(self):
            self._fit(X, y, sample_weight, first=not hasattr(self, "coef_"))
            self._warn_if_full()
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
        with all_or_nothing(self):
            return self._fit(X, y, None, sample_weight, first=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn a further task; `classes` may name classes that come later."""
        with all_or_nothing(self):
            self._fit(X, y, classes, sample_weight, first=not hasattr(self, "coef_"))
            self._warn_if_full()
        return self

    def decision_function(self, X: Any) -> Array:
        """Outputs of all classes `[n, classes]`; for two classes the difference `[n]`."""
        rows = self._outputs(X)
        return rows[:, 1] - rows[:, 0] if len(self.classes_) == 2 else rows

    def predict(self, X: Any) -> Array:
        """The class of the largest output."""
        largest = self._outputs(X).argmax(1)
        return np.asarray(self.classes_[largest])

    def _fit(self, X: Any, y: Any, classes: Any, sample_weight: Any, first: bool) -> Self:
        self._check_parameters()
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        named = unique_labels(y if classes is None else classes)
        if missing := set(np.unique(y).tolist()) - set(named.tolist()):
            raise ValueError(
                f"y has classes {sorted(missing)} that are not in classes={named.tolist()}; name "
                f"them too, or leave classes out"
            )
        earlier = named[:0] if first else self.classes_
        every = named if first else unique_labels(earlier, named)
        targets = (y[:, None] == every).astype(np.float64)
        known = np.searchsorted(every, earlier)
        self._learn(X, targets, checked_weights(sample_weight, X), known, first)
        self.classes_ = every
        return self


def checked_weights(sample_weight: Any, X: Array) -> Array | None:
    """Sample weights `[n]` >= 0, not all 0."""
    if sample_weight is None:
        return None
    checked = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if checked.sum() <= 0:
        raise ValueError("sample_weight sums to 0; at least one sample needs a positive weight")
    return np.asarray(checked)
