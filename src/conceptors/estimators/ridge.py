"""Ridge regression of one task after another, as scikit-learn estimators."""

import math
from typing import Any, Self, get_args

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import validate_data
from torch import Tensor

from conceptors._internal import checks
from conceptors.estimators.base import (
    Array,
    ConceptorLinear,
    ConceptorRegressor,
    one_of,
    positive,
    without_overflow,
)
from conceptors.estimators.closed_form import (
    Joint,
    Known,
    earlier,
    free_space,
    increment,
    simplified_increment,
)
from conceptors.readout.features import Activation, RandomFeatures, warn_of_scales
from conceptors.readout.sums import Sums

_INCREMENTS = {"paper": increment, "simplified": simplified_increment}
_FIXED = ("solution", "lift", "activation", "fit_intercept")  # over all tasks
_APERTURE, _REGULARIZATION = 10.0, 1e-2  # of tasks that are learned in turn
_ROWS = 4096  # rows whose features are computed at once


class _Ridge(ConceptorLinear):
    """Learns tasks from sums over their samples, in closed form."""

    _lift: RandomFeatures | None

    def __init__(
        self,
        aperture: float | str = "auto",
        regularization: float | None = None,
        *,
        solution: str = "joint",
        lift: int = 0,
        activation: str = "relu",
        fit_intercept: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.aperture = aperture
        self.regularization = regularization
        self.solution = solution
        self.lift = lift
        self.activation = activation
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def _check_parameters(self) -> None:
        one_of(self.solution, "solution", ("joint", *_INCREMENTS))
        one_of(self.activation, "activation", get_args(Activation))
        checks.whole(self.lift, "lift", 0)

    def _penalties(self) -> tuple[float | None, float | None]:
        """α and λ, None where they are to be chosen."""
        is_auto = isinstance(self.aperture, str) and self.aperture == "auto"
        alpha = None if is_auto else positive(self.aperture, "aperture")
        given = self.regularization
        return alpha, None if given is None else positive(given, "regularization")

    def _joint_penalty(self) -> float | None:
        """λ = α⁻², None where it is to be chosen."""
        alpha, given = self._penalties()
        if alpha is None:
            return given
        if given is not None and not math.isclose(given, alpha**-2, rel_tol=1e-6):
            raise ValueError(
                f"aperture={alpha:g} and regularization={given:g} disagree: solution='joint' has "
                f"regularization = aperture⁻² = {alpha**-2:g}; pass one of them, or use "
                f"solution='simplified', which has both"
            )
        return alpha**-2

    def _learn(self, X: Array, targets: Tensor, outputs: int, first: bool) -> None:
        """Learn targets `[n, m]` or labels `[n]`, below the number of outputs."""
        self._check_parameters()
        rows = without_overflow(torch.tensor(X), "X")
        self._fix(*_FIXED, first=first)
        if first:
            self._lift = self._new_lift(rows)
        sums = Sums((self.lift or X.shape[1]) + self.fit_intercept, outputs)
        for part, y in zip(rows.split(_ROWS), targets.split(_ROWS)):
            sums.add(self._lifted(part), y)
        before = None if first else self._memory
        if self.solution == "joint":
            if isinstance(before, Joint):
                sums.include(before.sums)
            self._memory = Joint(
                sums,
                self._joint_penalty(),
                constant=self.fit_intercept,
                of_classes=targets.ndim == 1,
                scaled=self._lift is None,
            )
        else:
            assert not isinstance(before, Joint)
            self._memory = self._learned_in_turn(before, sums)

    def _learned_in_turn(self, before: Known | None, sums: Sums) -> Known:
        alpha, given = self._penalties()
        aperture, regularization = alpha or _APERTURE, given or _REGULARIZATION
        R, K = sums.gram / sums.count, sums.cross / sums.count
        W, total = earlier(before, sums.outputs, sums.dim)
        free = free_space(total, aperture)
        W = W + _INCREMENTS[self.solution](R, K, W, free, regularization)
        return Known(W, total + R, aperture, regularization)

    def _new_lift(self, rows: Tensor) -> RandomFeatures | None:
        """Random features that are calibrated by the first task's data."""
        if not self.lift:
            warn_of_scales(rows)
            return None
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        activation: Any = self.activation
        lift = RandomFeatures(rows.shape[1], self.lift, activation, seed=seed)
        lift.calibrate(rows)
        return lift

    def _lifted(self, rows: Tensor) -> Tensor:
        """b = [h; 1], or h without an intercept."""
        h = rows if self._lift is None else self._lift(rows)
        return torch.cat([h, torch.ones_like(h[:, :1])], 1) if self.fit_intercept else h

    def _outputs(self, X: Any) -> Array:
        """Outputs W b `[n, m]` for rows `[n, d]`."""
        rows, weights = torch.tensor(self._validated(X)), torch.tensor(self._weights())
        return np.concatenate(
            [np.asarray(self._lifted(part) @ weights.mT) for part in rows.split(_ROWS)]
        )


class ConceptorRidge(ConceptorRegressor, _Ridge):
    """Ridge regression that learns tasks one after another and forgets none of them.

    Each call of `partial_fit` learns one task. Only sums over samples are stored. The weights are

        W = K (R + λ I)⁻¹,    λ = α⁻²,

    with R = E[b bᵀ] and K = E[y bᵀ] over all samples so far and b = [x; 1]. This is ridge
    regression on all tasks at once, in any order. Section 2.2 of the paper with the simplified
    gradient of section 3.1 gives the same result if its two penalties are equal.

    Parameters:
        aperture: α > 0, or "auto": chosen by generalised cross-validation from the sums, for
            inputs shifted and scaled to mean 0 and mean square 1 and with a free intercept, so
            units do not matter. A number applies to b as it is, intercept included.
        regularization: λ > 0, instead of α.
        solution: "joint" as above. "paper" is section 2.2 as printed, with F = ¬A of the OR of the
            earlier tasks' conceptors,

                W ← W + (K - W R) F (F R F + λ I)⁻¹,    A ← A ∨ C,

            R and K of the new task. It fits W_inc F b but predicts with W_inc b, so a new task
            disturbs old ones where F is soft. "simplified" is where the simplified gradient
            vanishes, W_inc = (K - W R) F (R F + λ I)⁻¹; with λ = α⁻² that is "joint" for R and K
            summed over the tasks' means. These two default to α = 10 and λ = 0.01, count tasks
            equally, and stop learning when memory is full, with a `MemoryFullWarning`.
        lift: number of random features to learn on, 0 for the inputs as they are. The first task's
            data calibrate them.
        activation: of the random features, "relu", "tanh" or "fourier".
        fit_intercept: add a constant unit to the inputs (the paper's bias unit).
        random_state: seed of the random features.

    Attributes:
        coef_, intercept_: the linear model so far, on the random features if `lift` is set.
        aperture_, regularization_: in use; if chosen, for inputs of mean 0 and mean square 1.
        quota_: share of the space used so far, in [0, 1].
        n_tasks_: number of tasks learned.

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

    def predict(self, X: Any) -> Array:
        """W [x; 1] for rows `[n, d]`."""
        rows = self._outputs(X)
        return rows if self._target_shape else rows[:, 0]

    def _fit(self, X: Any, y: Any, first: bool) -> None:
        X, targets = self._checked(X, y, first)
        self._learn(X, targets, targets.shape[1], first)


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

    _arrived: Array  # classes in the order of the outputs
    _target_shape = (1,)  # weights have a row for each class

    @property
    def classes_(self) -> Array:
        """All classes that occurred in y or were passed as `classes`, sorted."""
        return np.asarray(np.sort(self._arrived))

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:  # type: ignore[override]
        """Learn one more task; `classes` may name classes that come later."""
        return super().partial_fit(X, y, classes=classes)

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

    def _fit(self, X: Any, y: Any, first: bool, classes: Any = None) -> None:
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        named = unique_labels(y if classes is None else classes)
        if missing := set(np.unique(y).tolist()) - set(named.tolist()):
            raise ValueError(
                f"y has classes {sorted(missing)} that are not in classes={named.tolist()}; name "
                f"them too, or leave classes out"
            )
        if not first:
            unique_labels(self._arrived, named)  # refuses strings among numbers
            named = np.concatenate([self._arrived, named[~np.isin(named, self._arrived)]])
        self._arrived = named
        order = np.argsort(named)
        labels = order[np.searchsorted(named, y, sorter=order)]
        self._learn(X, torch.tensor(labels), len(named), first)
