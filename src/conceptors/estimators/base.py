"""What the scikit-learn estimators share: a memory of all tasks, and properties read from it."""

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from conceptors._internal import checks
from conceptors._internal.checks import outside
from conceptors.estimators.closed_form import Joint, Known, free_space

Array = npt.NDArray[Any]
_LARGEST = float(np.finfo(np.float64).max)
_FULL = 0.999  # a memory of this quota is reported


class MemoryFullWarning(UserWarning):
    """The tasks learned so far use nearly the whole input space."""


@contextmanager
def _all_or_nothing(estimator: BaseEstimator) -> Iterator[None]:
    """Put every attribute back if anything raises."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


def positive(value: Any, name: str) -> float:
    """A finite number above 0."""
    return checks.number(value, name, 0.0, _LARGEST, open_low=True)


def one_of(value: Any, name: str, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {[*choices]}, got {value!r}")
    return value


def without_overflow(rows: Tensor, name: str) -> Tensor:
    """Refuse values whose squares overflow."""
    if not bool(torch.isfinite(rows.square().sum())):
        largest = float(rows.abs().max())
        raise ValueError(f"{name} reaches {largest:.3g}: its squares overflow; scale {name}")
    return rows


class ConceptorLinear(BaseEstimator):  # type: ignore[misc]
    """A linear model of all tasks so far.

    Attributes:
        n_tasks_: number of tasks learned.
    """

    aperture: Any
    fit_intercept: bool
    n_tasks_: int
    _memory: Joint | Known
    _fixed: dict[str, Any]
    _target_shape: tuple[int, ...]  # of one sample: () or (m,)

    @property
    def coef_(self) -> Array:
        """`[m, d]`, `[d]` for targets `[n]`; on the random features if there are any."""
        weights = self._weights()
        coefficients = weights[:, :-1] if self.fit_intercept else weights
        return coefficients if self._target_shape else coefficients[0]

    @property
    def intercept_(self) -> Any:
        """`[m]`, a number for targets `[n]`."""
        weights = self._weights()
        intercept = weights[:, -1] if self.fit_intercept else np.zeros(len(weights))
        return intercept if self._target_shape else float(intercept[0])

    @property
    def aperture_(self) -> float:
        """α in use."""
        return self._known().aperture

    @property
    def regularization_(self) -> float:
        """λ in use."""
        return self._known().regularization

    @property
    def quota_(self) -> float:
        """tr C / d in [0, 1]: the share of the input space that all tasks so far use."""
        return self._known().quota

    def free_space(self) -> Array:
        """F = ¬A `[d, d]` (or d + 1 with an intercept): the space left for the next task."""
        known = self._known()
        return np.asarray(free_space(known.correlation, known.aperture))

    def fit(self, X: Any, y: Any) -> Self:
        """Forget all earlier tasks and learn one task: X `[n, d]`, y `[n]` or `[n, m]`."""
        with _all_or_nothing(self):
            self._fit(X, y, first=True)
            self.n_tasks_ = 1
        return self

    def partial_fit(self, X: Any, y: Any, **options: Any) -> Self:
        """Learn one more task without disturbing the earlier ones."""
        with _all_or_nothing(self):
            learned = getattr(self, "n_tasks_", 0)
            self._fit(X, y, first=not learned, **options)
            self.n_tasks_ = learned + 1
            self._warn_if_full()
        return self

    @abstractmethod
    def _fit(self, X: Any, y: Any, first: bool) -> None:
        """Learn a task, the first one or a further one."""

    def _fix(self, *names: str, first: bool) -> None:
        """Refuse parameters that differ from the earlier tasks."""
        now = {name: getattr(self, name) for name in names}
        for name, value in () if first else now.items():
            if self._fixed[name] != value:
                raise ValueError(
                    f"{name}={value!r} differs from the earlier tasks ({self._fixed[name]!r}), "
                    f"which cannot be combined; set it back, or start again with fit"
                )
        self._fixed = now

    def _known(self) -> Known:
        check_is_fitted(self)
        return self._memory.known if isinstance(self._memory, Joint) else self._memory

    def _validated(self, X: Any) -> Array:
        check_is_fitted(self)
        return np.asarray(validate_data(self, X, dtype=np.float64, reset=False))

    def _weights(self) -> Array:
        """W so far `[m, d]`, with an intercept `[m, d + 1]`."""
        return np.asarray(self._known().weights)

    def _warn_if_full(self) -> None:
        """Warn after a task learned in turn; the joint solution goes on learning."""
        memory = self._memory
        if isinstance(memory, Joint) or (quota := memory.quota) < _FULL:
            return
        tasks = "1 task" if self.n_tasks_ == 1 else f"{self.n_tasks_} tasks"
        warnings.warn(
            f"The memory is nearly full after {tasks}: they use {quota:.1%} of the input space "
            f"(quota_ {quota:.4f}). Further tasks can change little. Lower the aperture "
            f"({memory.aperture:g}), or use more features.",
            MemoryFullWarning,
            stacklevel=outside(),
        )


class ConceptorRegressor(MultiOutputMixin, RegressorMixin, ConceptorLinear):  # type: ignore[misc]
    """Targets `[n]` or `[n, m]`."""

    def _checked(self, X: Any, y: Any, first: bool) -> tuple[Any, Tensor]:
        """X, and targets `[n, m]`."""
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, reset=first
        )
        if not first and y.shape[1:] != self._target_shape:
            earlier = ["n", *map(str, self._target_shape)]
            raise ValueError(
                f"y of shape {list(y.shape)} does not fit the earlier tasks, whose y had shape "
                f"[{', '.join(earlier)}]; give y that shape, or start again with fit"
            )
        self._target_shape = y.shape[1:]
        targets = torch.tensor(y.reshape(len(y), -1), dtype=torch.float64)
        return X, without_overflow(targets, "y")
