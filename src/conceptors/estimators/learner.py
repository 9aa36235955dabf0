"""What scikit-learn estimators of one task after another share: a memory, and what it tells."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from conceptors.estimators import closed_form

try:
    from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError:
    raise ImportError(
        "the estimators need scikit-learn: pip install 'conceptors[sklearn]'"
    ) from None

Array = npt.NDArray[Any]


class MemoryFullWarning(UserWarning):
    """The tasks learned so far claim nearly the whole input space."""


class Memory(Protocol):
    """What is known of all tasks so far; b `[d]` is x, or [x; 1] with an intercept."""

    @property
    def weights(self) -> Tensor: ...  # W [m, d], in the order in which outputs came
    @property
    def correlation(self) -> Tensor: ...  # R [d, d], as far as the aperture refers to it
    @property
    def aperture(self) -> float: ...
    @property
    def regularization(self) -> float: ...
    @property
    def quota(self) -> float: ...
    @property
    def n_tasks(self) -> int: ...


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
    return without_overflow(torch.tensor(X, dtype=torch.float64), "X")


def without_overflow(rows: Tensor, name: str) -> Tensor:
    if not bool(torch.isfinite(rows.square().sum())):
        largest = float(rows.abs().max())
        raise ValueError(f"{name} reaches {largest:.3g}: its squares overflow; scale it")
    return rows


def checked_weights(sample_weight: Any, X: Any) -> Tensor | None:
    """Sample weights `[n]` >= 0, not all 0."""
    if sample_weight is None:
        return None
    checked = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if checked.sum() <= 0:
        raise ValueError("sample_weight sums to 0; at least one sample needs a positive weight")
    return torch.tensor(checked)


class ConceptorLinear(BaseEstimator):  # type: ignore[misc]
    """Reads a linear model off a memory, `_memory`, which is there once something was learned."""

    aperture: Any
    fit_intercept: bool
    warn_at_quota: float
    _memory: Memory

    @property
    def coef_(self) -> Array:
        """`[m, d]`, `[d]` for targets `[n]`; on the random features if there are any."""
        weights = self._weights()
        return weights[:, :-1] if self.fit_intercept else weights

    @property
    def intercept_(self) -> Any:
        """`[m]`, a number for targets `[n]`."""
        weights = self._weights()
        return weights[:, -1] if self.fit_intercept else np.zeros(len(weights))

    @property
    def quota_(self) -> float:
        """Share of the space that is claimed so far, in [0, 1]."""
        return self._known().quota

    @property
    def correlation_(self) -> Array:
        """Second moments of b, as far as `aperture_` refers to them."""
        return np.asarray(self._known().correlation)

    @property
    def n_tasks_(self) -> int:
        """Tasks learned."""
        return self._known().n_tasks

    def free_space(self) -> Array:
        """F = ¬A `[d, d]` (or d + 1 with an intercept): what the next task may still use."""
        memory = self._known()
        aperture = memory.aperture if isinstance(self.aperture, str) else self.aperture
        return np.asarray(closed_form.free_space(memory.correlation, aperture))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_memory")

    def _known(self) -> Memory:
        check_is_fitted(self)
        return self._memory

    def _weights(self) -> Array:
        """W so far, `[m, d]`, with an intercept `[m, d + 1]`, a row per output."""
        return np.asarray(self._known().weights)

    def _warn_if_full(self) -> None:
        memory = self._memory
        if memory.quota >= self.warn_at_quota:
            tasks = "1 task" if memory.n_tasks == 1 else f"{memory.n_tasks} tasks"
            warnings.warn(
                f"memory is nearly full after {tasks}: they claim "
                f"{memory.quota:.1%} of the input space (quota_ {memory.quota:.4f}, warning from "
                f"{self.warn_at_quota:g}). Further tasks can change little; lower the aperture "
                f"({memory.aperture:g}), or use more features",
                MemoryFullWarning,
                stacklevel=3,
            )


class ConceptorRegressor(MultiOutputMixin, RegressorMixin, ConceptorLinear):  # type: ignore[misc]
    """Targets `[n]` or `[n, m]`, and coefficients of the matching shape."""

    _target_shape: tuple[int, ...]  # of one sample: () or (m,)

    @property
    def coef_(self) -> Array:
        """`[m, d]`, `[d]` for targets `[n]`; on the random features if there are any."""
        found: Array = super().coef_
        return found if self._target_shape else found[0]

    @property
    def intercept_(self) -> Any:
        """`[m]`, a number for targets `[n]`."""
        found = super().intercept_
        return found if self._target_shape else float(found[0])

    def _checked(self, X: Any, y: Any, first: bool, **more: Any) -> tuple[Any, Tensor]:
        """X, and targets `[n, m]`."""
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=first, **more
        )
        if not first and y.shape[1:] != self._target_shape:
            earlier = ["n", *map(str, self._target_shape)]
            raise ValueError(
                f"y of shape {list(y.shape)} does not fit the earlier tasks, whose y had shape "
                f"[{', '.join(earlier)}]; give y that shape, or forget them with fit"
            )
        self._target_shape = y.shape[1:]
        return X, torch.tensor(y.reshape(len(y), -1), dtype=torch.float64)

    def _shaped(self, rows: Array) -> Array:
        return rows if self._target_shape else rows[:, 0]


def refuse_changes(then: dict[str, Any], now: dict[str, Any]) -> None:
    """What earlier tasks were learned with must stay."""
    for name, value in now.items():
        if then[name] != value:
            raise ValueError(
                f"{name}={value!r} differs from the earlier tasks ({then[name]!r}); set it back, "
                f"or forget them with fit"
            )
