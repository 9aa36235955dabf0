"""Conceptor-aided stochastic gradient descent as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from conceptors import _checks as checks
from conceptors import ridge
from conceptors.regression import RegressorShape

try:
    from sklearn.base import MultiOutputMixin, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import validate_data
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None


class ConceptorSGDRegressor(MultiOutputMixin, RegressorMixin, RegressorShape):  # type: ignore[misc]
    """Conceptor-aided SGD (section 3.1 of the report): `ConceptorRidge` by mini-batches.

    Each call of `partial_fit` is one task: `epochs` passes over its data with

        W ← W - η (2 E[e sᵀ] + 2 λ⁻² (W - W_previous)),    s = F b,

    where e = W b - y (`gradient="simplified"`, the report's rule) or W_inc s - t
    (`gradient="exact"`, which converges to the closed form of `ConceptorRidge`).

    Parameters:
        aperture, regularization, fit_intercept, warn_at_quota: as in `ConceptorRidge`.
        gradient: "simplified" or "exact".
        learning_rate: η > 0, or "auto": half the largest step that is stable for the batch size.
        batch_size, epochs: how the data is gone through.
        average: return the mean of the weights over the second half of the steps, which takes
            the noise of the mini-batches away.
        random_state: order of the samples.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3)); y = X @ [1.0, -2.0, 0.5] + 3
    >>> sgd = ConceptorSGDRegressor(regularization=1e-3, random_state=0).fit(X, y)
    >>> bool(sgd.score(X, y) > 0.999)
    True
    """

    def __init__(
        self,
        aperture: float = 10.0,
        regularization: float = 1e-2,
        *,
        gradient: str = "simplified",
        learning_rate: float | str = "auto",
        batch_size: int = 32,
        epochs: int = 100,
        average: bool = True,
        fit_intercept: bool = True,
        random_state: Any = None,
        warn_at_quota: float = 0.999,
    ) -> None:
        self.aperture = aperture
        self.regularization = regularization
        self.gradient = gradient
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.epochs = epochs
        self.average = average
        self.fit_intercept = fit_intercept
        self.random_state = random_state
        self.warn_at_quota = warn_at_quota

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything and learn one task."""
        return self._fit(X, y, first=True)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn a further task without disturbing the earlier ones."""
        self._fit(X, y, first=not hasattr(self, "weights_"))
        self._warn_if_full()
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.gradient not in ("simplified", "exact"):
            raise ValueError(f"gradient must be 'simplified' or 'exact', got {self.gradient!r}")
        if self.learning_rate != "auto":
            limit = float(np.finfo(np.float64).max)
            checks.number(self.learning_rate, "learning_rate", 0.0, limit, open_low=True)
        checks.whole(self.batch_size, "batch_size", 1)
        checks.whole(self.epochs, "epochs", 1)

    def _fit(self, X: Any, y: Any, first: bool) -> Self:
        self._check_parameters()
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=first
        )
        targets = torch.from_numpy(np.ascontiguousarray(self._targets(y, first), dtype=np.float64))
        inputs = self._inputs(X)
        total, free = self._memory(inputs.shape[1], first)
        correlation = inputs.mT @ inputs / len(inputs)
        if first:
            previous = torch.zeros(targets.shape[1], inputs.shape[1], dtype=torch.float64)
        else:
            previous = torch.from_numpy(self.weights_)
        weights = self._descend(inputs, targets, previous, free, correlation)
        if not bool(torch.isfinite(weights).all()):
            raise ValueError(
                f"the weights diverged with learning_rate={self.learning_rate}; use a smaller one, "
                f"or learning_rate='auto'"
            )
        self.increment_norm_ = float((weights - previous).norm())
        self._store(weights, total + correlation, 1 if first else self.n_tasks_ + 1)
        return self

    def _descend(
        self, inputs: Tensor, targets: Tensor, previous: Tensor, free: Tensor, correlation: Tensor
    ) -> Tensor:
        size = min(self.batch_size, len(inputs))
        rate = self.learning_rate
        if rate == "auto":
            # A batch of n rows has curvature at most λ_max(R) (n - 1) / n + max |x|² / n.
            top = float(torch.linalg.eigvalsh(correlation)[-1])
            longest = float(inputs.square().sum(1).max())
            rate = 0.5 / (top * (size - 1) / size + longest / size + self.regularization)
        random = check_random_state(self.random_state)
        weights, mean, averaged = previous.clone(), torch.zeros_like(previous), 0
        for epoch in range(self.epochs):
            order = torch.from_numpy(random.permutation(len(inputs)))
            for batch in order.split(size):
                step = ridge.gradient(
                    inputs[batch],
                    targets[batch],
                    weights,
                    previous,
                    free,
                    self.regularization,
                    exact=self.gradient == "exact",
                )
                weights.sub_(step, alpha=float(rate))
                if self.average and 2 * epoch >= self.epochs:
                    averaged += 1
                    mean += (weights - mean) / averaged
        return mean if averaged else weights
