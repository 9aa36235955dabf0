"""Conceptor-aided stochastic gradient descent as a scikit-learn estimator."""

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from torch import Tensor

from conceptors._internal import checks
from conceptors.estimators.base import (
    Array,
    ConceptorRegressor,
    one_of,
    positive,
    without_overflow,
)
from conceptors.estimators.closed_form import Known, earlier, free_space


class ConceptorSGDRegressor(ConceptorRegressor):
    """Conceptor-aided SGD (section 3.1 of the paper): `ConceptorRidge` by mini-batches.

    Each call of `partial_fit` is one task: `epochs` passes over its data with

        W ← W - η (2 E[e sᵀ] + 2 λ⁻² (W - W_previous)),    s = F b,

    where e = W b - y (`gradient="simplified"`, the paper's rule) or W_inc s - t
    (`gradient="exact"`). The result is the mean of W over the second half of the steps. Both
    converge to `ConceptorRidge` with solution="simplified" and "paper".

    Parameters:
        aperture, regularization: α and λ⁻², both > 0.
        fit_intercept: as in `ConceptorRidge`.
        gradient: "simplified" or "exact".
        learning_rate: η > 0, or "auto": half the largest step that is stable for the batch size.
        batch_size, epochs: size of the mini-batches, and number of passes over the data.
        random_state: seed of the order of the samples.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3)); y = X @ [1.0, -2.0, 0.5] + 3
    >>> sgd = ConceptorSGDRegressor(regularization=1e-3, random_state=0).fit(X, y)
    >>> bool(sgd.score(X, y) > 0.999)
    True
    """

    _memory: Known

    def __init__(
        self,
        aperture: float = 10.0,
        regularization: float = 1e-2,
        *,
        gradient: str = "simplified",
        learning_rate: float | str = "auto",
        batch_size: int = 32,
        epochs: int = 100,
        fit_intercept: bool = True,
        random_state: Any = None,
    ) -> None:
        self.aperture = aperture
        self.regularization = regularization
        self.gradient = gradient
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def predict(self, X: Any) -> Array:
        """W [x; 1] for rows `[n, d]`."""
        return np.asarray(self._validated(X) @ self.coef_.T + self.intercept_)

    def _fit(self, X: Any, y: Any, first: bool) -> None:
        self._check_parameters()
        X, targets = self._checked(X, y, first)
        b = np.hstack([X, np.ones((len(X), 1))]) if self.fit_intercept else X
        inputs = without_overflow(torch.tensor(b, dtype=torch.float64), "X")
        self._fix("fit_intercept", first=first)
        correlation = inputs.mT @ inputs / len(inputs)
        rate = self._rate(inputs, correlation)
        before = None if first else self._memory
        previous, total = earlier(before, targets.shape[1], inputs.shape[1])
        free = free_space(total, self.aperture)
        weights = self._descend(inputs, targets, previous, free, rate)
        self._memory = Known(weights, total + correlation, self.aperture, self.regularization)

    def _check_parameters(self) -> None:
        positive(self.aperture, "aperture")
        positive(self.regularization, "regularization")
        one_of(self.gradient, "gradient", ("simplified", "exact"))
        if self.learning_rate != "auto":
            positive(self.learning_rate, "learning_rate")
        checks.whole(self.batch_size, "batch_size", 1)
        checks.whole(self.epochs, "epochs", 1)

    def _descend(
        self, inputs: Tensor, targets: Tensor, previous: Tensor, free: Tensor, rate: float
    ) -> Tensor:
        size = min(self.batch_size, len(inputs))
        random = check_random_state(self.random_state)
        weights, mean, averaged = previous.clone(), torch.zeros_like(previous), 0
        for epoch in range(self.epochs):
            order = torch.from_numpy(random.permutation(len(inputs)))
            for batch in order.split(size):
                x, y = inputs[batch], targets[batch]
                shielded, change = x @ free, weights - previous  # s and W_inc
                if self.gradient == "exact":
                    error = shielded @ change.mT - (y - x @ previous.mT)
                else:
                    error = x @ weights.mT - y
                step = 2 * (error.mT @ shielded) / len(x) + 2 * self.regularization * change
                # A last, smaller batch takes a smaller step: every sample counts the same.
                weights.sub_(step, alpha=rate * len(batch) / size)
                if 2 * (epoch + 1) > self.epochs:
                    averaged += 1
                    mean += (weights - mean) / averaged
        if not bool(torch.isfinite(weights).all()):
            raise ValueError(
                f"the weights diverged with learning_rate={self.learning_rate}; use a smaller one, "
                f"or learning_rate='auto'"
            )
        return mean

    def _rate(self, inputs: Tensor, correlation: Tensor) -> float:
        if self.learning_rate != "auto":
            return float(self.learning_rate)
        # Batches of n rows have E[R̂²] <= c R with c = λ_max(R) (n - 1) / n + max |x|² / n, so the
        # mean square error shrinks for steps below 1 / (c + λ⁻²).
        size = min(self.batch_size, len(inputs))
        top = float(torch.linalg.eigvalsh(correlation)[-1])
        longest = float(inputs.square().sum(1).max())
        return 0.5 / (top * (size - 1) / size + longest / size + self.regularization)
