"""Conceptor-aided stochastic gradient descent as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors.estimators import closed_form
from conceptors.estimators.ridge import ConceptorRegressor, Task, all_or_nothing

try:
    from sklearn.utils import check_random_state
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None


class ConceptorSGDRegressor(ConceptorRegressor):
    """Conceptor-aided SGD (section 3.1 of the paper): `ConceptorRidge` by mini-batches.

    Each call of `partial_fit` is one task: `epochs` passes over its data with

        W ← W - η (2 E[e sᵀ] + 2 λ⁻² (W - W_previous)),    s = F b,

    where e = W b - y (`gradient="simplified"`, the paper's rule) or W_inc s - t
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
        with all_or_nothing(self):
            return self._fit(X, y, None, first=True)

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn a further task without disturbing the earlier ones."""
        with all_or_nothing(self):
            self._fit(X, y, None, first=not hasattr(self, "coef_"))
            self._warn_if_full()
        return self

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.gradient not in ("simplified", "exact"):
            raise ValueError(f"gradient must be 'simplified' or 'exact', got {self.gradient!r}")
        if isinstance(self.learning_rate, str):
            if self.learning_rate != "auto":
                raise ValueError(
                    f"learning_rate must be a positive number or 'auto', got {self.learning_rate!r}"
                )
        else:
            limit = float(np.finfo(np.float64).max)
            checks.number(self.learning_rate, "learning_rate", 0.0, limit, open_low=True)
        checks.whole(self.batch_size, "batch_size", 1)
        checks.whole(self.epochs, "epochs", 1)

    def _solve(self, task: Task, previous: Tensor, free: Tensor) -> Tensor:
        size = min(self.batch_size, len(task.inputs))
        rate = self._rate(task, size)
        random = check_random_state(self.random_state)
        weights, mean, averaged = previous.clone(), torch.zeros_like(previous), 0
        for epoch in range(self.epochs):
            order = torch.from_numpy(random.permutation(len(task.inputs)))
            for batch in order.split(size):
                step = closed_form.gradient(
                    task.inputs[batch],
                    task.targets[batch],
                    weights,
                    previous,
                    free,
                    self.regularization,
                    exact=self.gradient == "exact",
                )
                # A last, smaller batch makes a smaller step: every sample counts the same.
                weights.sub_(step, alpha=rate * len(batch) / size)
                if self.average and 2 * epoch >= self.epochs:
                    averaged += 1
                    mean += (weights - mean) / averaged
        if not bool(torch.isfinite(weights).all()):
            raise ValueError(
                f"the weights diverged with learning_rate={self.learning_rate}; use a smaller one, "
                f"or learning_rate='auto'"
            )
        return mean if averaged else weights

    def _rate(self, task: Task, size: int) -> float:
        if not isinstance(self.learning_rate, str):
            return float(self.learning_rate)
        # Batches of n rows have E[R̂²] <= c R with c = λ_max(R) (n - 1) / n + max |x|² / n, so
        # that the mean square error shrinks for steps below 1 / (c + λ⁻²).
        top = float(torch.linalg.eigvalsh(task.correlation)[-1])
        longest = float(task.inputs.square().sum(1).max())
        return 0.5 / (top * (size - 1) / size + longest / size + self.regularization)
