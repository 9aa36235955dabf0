"""Tasks that tests of several estimators share, and ridge regression by hand."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Task = tuple[Array, Array]


def tasks(count: int = 3, outputs: int | None = 2) -> list[Task]:
    """Tasks of different sizes and directions; y is `[n, outputs]`, or `[n]` for None."""
    rng = np.random.default_rng(3)
    pairs = []
    for k in range(count):
        n = 20 + 15 * k
        X = rng.normal(size=(n, 5)) @ np.diag(rng.uniform(0, 2, 5))
        pairs.append((X, rng.normal(size=n if outputs is None else (n, outputs))))
    return pairs


def with_bias(X: Array, fit_intercept: bool) -> Array:
    return np.hstack([X, np.ones((len(X), 1))]) if fit_intercept else X


def weights(reg: Any) -> Array:
    columns = [np.atleast_2d(reg.coef_)]
    if reg.fit_intercept:
        columns.append(np.reshape(reg.intercept_, (-1, 1)))
    return np.hstack(columns)
