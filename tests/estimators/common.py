"""Tasks and digits that tests of several estimators share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

from conceptors import ConceptorRidge, ConceptorRidgeClassifier

Array = npt.NDArray[Any]
Task = tuple[Array, Array]


def tasks(count: int = 3, outputs: int | None = 2) -> list[Task]:
    """Tasks of different sizes and directions; y is `[n, outputs]`, or `[n]` for None."""
    rng = np.random.default_rng(3)
    found = []
    for k in range(count):
        n = 20 + 15 * k
        X = rng.normal(size=(n, 5)) @ np.diag(rng.uniform(0, 2, 5))
        y = rng.normal(size=n if outputs is None else (n, outputs))
        found.append((X, y))
    return found


def with_bias(X: Array, fit_intercept: bool) -> Array:
    return np.hstack([X, np.ones((len(X), 1))]) if fit_intercept else X


def weights(reg: ConceptorRidge | ConceptorRidgeClassifier) -> Array:
    columns = [np.atleast_2d(reg.coef_)]
    if reg.fit_intercept:
        columns.append(np.reshape(reg.intercept_, (-1, 1)))
    return np.hstack(columns)


class Digits:
    """Handwritten digits, training and test part, as they are or with permuted pixels."""

    def __init__(self) -> None:
        X, y = load_digits(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(X))
        self.train, self.test = order[:1300], order[1300:]
        self.X, self.y = X / 16, y
        self.Y = np.eye(10)[y]

    def permuted(self, seed: int) -> Array:
        order = np.random.default_rng(seed).permutation(64)
        return np.asarray(self.X[:, order])

    def accuracy(self, reg: ConceptorRidge, X: Array, rows: Array) -> float:
        return float((reg.predict(X[rows]).argmax(1) == self.y[rows]).mean())
