"""Rows as scikit-learn passes them, dense or sparse: through a lift, and into sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conceptors.estimators.learner import Array, without_overflow
from conceptors.estimators.lift import Activation, Lift, RandomFeatures, Scaling
from conceptors.estimators.sums import Sums

_ROWS = 8192  # that are dense at once, at most
_NUMBERS = 2**24  # that are dense at once


def dense_parts(X: Any, width: int) -> Iterator[tuple[slice, Tensor]]:
    """Dense float64 rows, few enough that their features `[n, width]` fit into memory easily."""
    size = max(1, min(_ROWS, _NUMBERS // max(width, X.shape[1])))
    for start in range(0, X.shape[0], size):
        yield slice(start, start + size), _dense(X[start : start + size])


def _dense(X: Any) -> Tensor:
    return torch.tensor(X.toarray() if hasattr(X, "toarray") else X, dtype=torch.float64)


def lift_for(
    X: Any,
    weights: Tensor | None,
    features: int,
    activation: Activation,
    seed: int,
    *,
    scaled: bool,
    shifted: bool,
) -> Lift:
    """What rows go through, fixed by the first data X: random features, or a `Scaling`.

    Without random features, a shift is only for models with an intercept, which can undo it.
    """
    width = X.shape[1]
    made: Lift = Scaling(width)
    if features:
        made = RandomFeatures(width, features, activation, seed=seed)
    elif not scaled:
        made.center = torch.zeros(width, dtype=torch.float64)
        made.scale = torch.ones((), dtype=torch.float64)
        return made
    most = max(1, min(_ROWS, _NUMBERS // max(width, features)))
    rows = without_overflow(_dense(X[_sample(X.shape[0], weights, most)]), "X")
    if bool((rows == rows[0]).all()):  # rows that do not differ tell a size by their own length
        rows = torch.cat([rows, torch.zeros_like(rows[:1])])
    made.calibrate(rows)
    if isinstance(made, Scaling) and not shifted:
        made.center = torch.zeros_like(made.center)
    return made


def _sample(n: int, weights: Tensor | None, most: int) -> Array:
    """Which rows to look at, evenly spaced, each as often as its weight says."""
    weight = np.ones(n) if weights is None else weights.numpy()
    upto = weight.cumsum()
    count = min(most, max(round(upto[-1]), int((weight > 0).sum())))
    places = (np.arange(count) + 0.5) * (upto[-1] / count)
    return np.asarray(np.searchsorted(upto, places, side="right"))


def sums_over(
    X: Any,
    targets: Tensor,
    outputs: int,
    lift: Lift,
    constant: bool,
    weights: Tensor | None,
    dtype: torch.dtype,
) -> Sums:
    """Sums over b = [h; 1], h what the lift makes of x, with targets or labels of all rows."""
    width = lift.out_features + int(constant)
    sums = Sums(width, outputs)
    for at, rows in dense_parts(X, width):
        h = lift(without_overflow(rows, "X")).to(dtype)
        b = torch.cat([h, torch.ones_like(h[:, :1])], 1) if constant else h
        y = targets[at] if targets.ndim == 1 else without_overflow(targets[at], "y")
        sums.add(b, y, None if weights is None else weights[at])
    return sums


def outputs_over(X: Any, lift: Lift, weights: Array, constant: bool) -> Array:
    """W b `[n, m]` of all rows."""
    found = np.empty((X.shape[0], len(weights)))
    for at, rows in dense_parts(X, lift.out_features):
        h = np.asarray(lift(rows))
        found[at] = h @ weights[:, : h.shape[1]].T + (weights[:, -1] if constant else 0)
    return found
