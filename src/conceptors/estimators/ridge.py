"""Ridge regression of one task after another, as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from conceptors.estimators import closed_form, settings
from conceptors.estimators.in_turn import InTurn, learned_from_sums
from conceptors.estimators.joint import Joint
from conceptors.estimators.labels import arrivals
from conceptors.estimators.learner import (
    Array,
    ConceptorLinear,
    ConceptorRegressor,
    MemoryFullWarning,
    all_or_nothing,
    checked_weights,
    refuse_changes,
)
from conceptors.estimators.lift import Lift
from conceptors.estimators.rows import lift_for, outputs_over, sums_over

try:
    from sklearn.base import ClassifierMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None

__all__ = ["ConceptorRidge", "ConceptorRidgeClassifier", "MemoryFullWarning"]

_INCREMENTS = {"paper": closed_form.increment, "simplified": closed_form.simplified_increment}
_MANY = 1000  # random features, from which on the products take most of the time
_SPARSE = {"accept_sparse": "csr"}


class _Ridge(ConceptorLinear):
    """Learns tasks from sums over their samples, in closed form."""

    _memory: Joint | InTurn
    _fixed: settings.Fixed
    _lift: Lift

    def __init__(
        self,
        aperture: float | str = "auto",
        regularization: float | None = None,
        *,
        solution: str = "joint",
        weighting: str = "samples",
        lift: int = 0,
        activation: str = "relu",
        fit_intercept: bool = True,
        warn_at_quota: float = 0.999,
        random_state: Any = 0,
    ) -> None:
        self.aperture = aperture
        self.regularization = regularization
        self.solution = solution
        self.weighting = weighting
        self.lift = lift
        self.activation = activation
        self.fit_intercept = fit_intercept
        self.warn_at_quota = warn_at_quota
        self.random_state = random_state

    @property
    def aperture_(self) -> float:
        """α in use."""
        check_is_fitted(self)
        return self._memory.aperture

    @property
    def regularization_(self) -> float:
        """λ in use."""
        check_is_fitted(self)
        return self._memory.regularization

    @property
    def increment_norm_(self) -> float:
        """Frobenius norm of the last task's change of the weights, if tasks are learned in turn."""
        check_is_fitted(self)
        if isinstance(self._memory, Joint):
            raise AttributeError("solution='joint' solves all tasks anew: there is no increment")
        return self._memory.increment_norm

    def _settings(self) -> tuple[settings.Fixed, settings.Penalty]:
        """All parameters, checked."""
        fixed = settings.fixed(self.get_params(deep=False))
        settings.checked_quota(self.warn_at_quota)
        return fixed, settings.penalty(self.aperture, self.regularization, fixed.solution)

    def _learn(
        self,
        X: Any,
        targets: Tensor,
        outputs: int,
        sample_weight: Any,
        task: Hashable | None,
        first: bool,
        given: tuple[settings.Fixed, settings.Penalty],
    ) -> None:
        """Learn targets `[n, m]` or labels `[n]`, below the number of outputs."""
        fixed, penalty = given
        settings.checked_task(task)
        weights = checked_weights(sample_weight, X)
        if first:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            self._lift = lift_for(
                X,
                weights,
                fixed.lift,
                fixed.activation,
                seed,
                scaled=penalty.regularization is None,
                shifted=fixed.fit_intercept,
            )
            self._fixed = fixed
        else:
            refuse_changes(self._fixed._asdict(), fixed._asdict())
        joint = fixed.solution == "joint"
        # Classes need no more than float32 of many random features, which is twice as fast.
        coarse = joint and fixed.lift >= _MANY and targets.ndim == 1
        dtype = torch.float32 if coarse else torch.float64
        sums = sums_over(X, targets, outputs, self._lift, fixed.fit_intercept, weights, dtype)
        before = None if first else self._memory
        if joint:
            rows = X.shape[0] if weights is None else int((weights > 0).sum())
            memory = before
            if not isinstance(memory, Joint):
                by_task = fixed.weighting == "tasks"
                memory = Joint(self._lift, fixed.fit_intercept, by_task, targets.ndim == 1)
            memory.learn(sums, rows, task, penalty.regularization)
            self._memory = memory
            return
        assert penalty.aperture is not None
        assert penalty.regularization is not None
        assert not isinstance(before, Joint)
        increment = _INCREMENTS[fixed.solution]
        self._memory = learned_from_sums(
            before, sums, task, penalty.aperture, penalty.regularization, increment
        )

    @property
    def _fills_up(self) -> bool:
        return isinstance(self._memory, InTurn)  # the joint solution goes on learning

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False, **_SPARSE)
        if self._fixed.lift:
            return outputs_over(X, self._lift, self._weights(), self._fixed.fit_intercept)
        weights = self._weights()
        offset = weights[:, -1] if self._fixed.fit_intercept else 0.0
        return np.asarray(X @ weights[:, : X.shape[1]].T + offset)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class ConceptorRidge(ConceptorRegressor, _Ridge):
    """Ridge regression that learns tasks one after another, and forgets none of them.

    Each call of `partial_fit` is one task. Only sums over samples are kept, and the weights are

        W = K (R + λ I)⁻¹,    λ = α⁻²,

    with R = E[b bᵀ] and K = E[y bᵀ] over all samples so far, b = [x; 1]: ridge regression on all
    tasks at once, in whatever order they came. It is also what section 2.2 of the paper gives with
    the simplified gradient of section 3.1, if both penalties there are the same.

    Parameters:
        aperture: α > 0, or "auto": chosen by generalised cross-validation from the sums, for
            inputs shifted and scaled to mean 0 and mean square 1 and with a free intercept, so
            that units do not matter. A number applies to b as it is, intercept included.
        regularization: λ > 0, to be given instead of α.
        solution: "joint" as above. "paper" is section 2.2 as printed, with F = ¬A of the OR of the
            earlier tasks' conceptors,

                W ← W + (K - W R) F (F R F + λ I)⁻¹,    A ← A ∨ C,

            R and K of the new task. It fits W_inc F b but predicts with W_inc b, so that where F is
            soft a new task disturbs old ones. "simplified" is where the simplified gradient
            vanishes, W_inc = (K - W R) F (R F + λ I)⁻¹; with λ = α⁻² that is "joint" with
            weighting="tasks". These two take α = 10 and λ = 0.01 unless told otherwise, count
            tasks equally, and stop learning when memory is full.
        weighting: "samples" count equally, or "tasks", whatever their sizes: then
            R = Σ E[b bᵀ], summed over tasks, and K likewise.
        lift: number of random features to learn on, 0 for the inputs as they are. They are fixed by
            the first task's data, which is all that the order of tasks then decides.
        activation: of the random features, "relu", "tanh" or "fourier".
        fit_intercept: add a constant unit to the inputs (the paper's bias unit).
        warn_at_quota: from this `quota_` on, `partial_fit` gives a `MemoryFullWarning` (not for
            "joint", which goes on learning).
        random_state: of the random features.

    Attributes:
        coef_, intercept_: the linear model so far, on the random features if `lift` is set. The
            joint solution is made when one of the attributes is asked for.
        aperture_, regularization_: in use; if chosen, for inputs of mean 0 and mean square 1.
        quota_: share of the space claimed so far, in [0, 1].
        n_tasks_: number of tasks learned.
        correlation_: R `[d, d]` (d + 1 with an intercept) that `aperture_` refers to, summed over
            tasks that count equally.
        increment_norm_: Frobenius norm of the last task's change of the weights (not for "joint").

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X1, X2 = rng.normal(size=(2, 100, 4))
    >>> X1[:, 2:] = 0; X2[:, :2] = 0              # two tasks in different directions
    >>> y1, y2 = X1 @ [1, 2, 0, 0] + 5, X2 @ [0, 0, 3, 4] + 5
    >>> reg = ConceptorRidge().partial_fit(X1, y1).partial_fit(X2, y2)
    >>> reg.coef_.round(2), round(reg.intercept_, 2)
    (array([1., 2., 3., 4.]), 5.0)
    >>> reg.score(X1, y1) > 0.999, reg.n_tasks_
    (True, 2)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Forget everything and learn one task."""
        with all_or_nothing(self):
            return self._fit(X, y, sample_weight, None, first=True)

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, task: Hashable | None = None
    ) -> Self:
        """Learn a further task without disturbing the earlier ones.

        Calls with the same `task`, any name, bring parts of one task.
        """
        with all_or_nothing(self):
            self._fit(X, y, sample_weight, task, first=not self.__sklearn_is_fitted__())
            if self._fills_up:
                self._warn_if_full()
        return self

    def predict(self, X: Any) -> Array:
        """W [x; 1] for rows `[n, d]`."""
        return self._shaped(self._outputs(X))

    def _fit(self, X: Any, y: Any, sample_weight: Any, task: Hashable | None, first: bool) -> Self:
        given = self._settings()
        X, targets = self._checked(X, y, first, **_SPARSE)
        self._learn(X, targets, targets.shape[1], sample_weight, task, first, given)
        return self


class ConceptorRidgeClassifier(ClassifierMixin, _Ridge):  # type: ignore[misc]
    """`ConceptorRidge` on one-hot targets: learns classes one task after another.

    New classes may come with any task, one at a time if need be, in any order. Parameters and
    attributes as in `ConceptorRidge`, and `classes_`.

    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> clf = ConceptorRidgeClassifier(lift=500)
    >>> for digit in range(10):
    ...     clf = clf.partial_fit(X[::2][y[::2] == digit], y[::2][y[::2] == digit])
    >>> len(clf.classes_), bool(clf.score(X[1::2], y[1::2]) > 0.96)
    (10, True)
    """

    _arrived: Array  # classes in the order of the memory's outputs

    @property
    def classes_(self) -> Array:
        """All classes that came or were named, sorted."""
        check_is_fitted(self)
        return np.asarray(self._arrived[np.argsort(self._arrived)])

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Forget everything and learn one task."""
        with all_or_nothing(self):
            return self._fit(X, y, None, sample_weight, None, first=True)

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
        task: Hashable | None = None,
    ) -> Self:
        """Learn a further task; `classes` may name classes that come later.

        Calls with the same `task`, any name, bring parts of one task.
        """
        with all_or_nothing(self):
            first = not self.__sklearn_is_fitted__()
            self._fit(X, y, classes, sample_weight, task, first=first)
            if self._fills_up:
                self._warn_if_full()
        return self

    def decision_function(self, X: Any) -> Array:
        """Outputs of all classes `[n, classes]`; for two classes the difference `[n]`."""
        rows = self._outputs(X)
        return rows[:, 1] - rows[:, 0] if rows.shape[1] == 2 else rows

    def predict(self, X: Any) -> Array:
        """The class of the largest output."""
        largest = self._outputs(X).argmax(1)
        return np.asarray(self.classes_[largest])

    def _weights(self) -> Array:
        """Rows in the order of `classes_`."""
        return np.asarray(super()._weights()[np.argsort(self._arrived)])

    def _fit(
        self,
        X: Any,
        y: Any,
        classes: Any,
        sample_weight: Any,
        task: Hashable | None,
        first: bool,
    ) -> Self:
        given = self._settings()
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first, **_SPARSE)
        self._arrived, labels = arrivals(None if first else self._arrived, y, classes)
        outputs = len(self._arrived)
        self._learn(X, torch.tensor(labels), outputs, sample_weight, task, first, given)
        return self
