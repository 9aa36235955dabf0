"""What the ridge estimators may be told, checked before anything is learned."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from conceptors._internal import checks
from conceptors.estimators.lift import Activation

_SOLUTIONS = ("joint", "paper", "simplified")
_RENAMED = {"exact": "paper"}
_WEIGHTINGS = ("samples", "tasks")
_ACTIVATIONS = get_args(Activation)
_APERTURE, _REGULARIZATION = 10.0, 1e-2  # of tasks that are learned in turn
_LARGEST = float(np.finfo(np.float64).max)


class Fixed(NamedTuple):
    """What has to stay from task to task."""

    solution: Literal["joint", "paper", "simplified"]
    weighting: Literal["samples", "tasks"]
    lift: int
    activation: Activation
    fit_intercept: bool


class Penalty(NamedTuple):
    """α and λ; None is to be chosen."""

    aperture: float | None
    regularization: float | None


def checked_aperture(value: Any) -> float:
    return float(checks.aperture(value, torch.Size(()), torch.zeros(1, dtype=torch.float64)))


def checked_regularization(value: Any) -> float:
    return checks.number(value, "regularization", 0.0, _LARGEST, open_low=True)


def checked_task(task: Any) -> None:
    try:
        hash(task)
    except TypeError:
        raise TypeError(f"task must be a name, such as 'birds', got {task!r}") from None


def checked_quota(value: Any) -> float:
    return checks.number(value, "warn_at_quota", 0.0, 1.0)


def fixed(params: dict[str, Any]) -> Fixed:
    solution = params["solution"]
    if solution in _RENAMED:
        warnings.warn(
            f"solution={solution!r} is now called {_RENAMED[solution]!r}; the old name will go",
            FutureWarning,
            stacklevel=5,  # who called fit or partial_fit
        )
        solution = _RENAMED[solution]
    return Fixed(
        _one_of(solution, "solution", _SOLUTIONS),
        _one_of(params["weighting"], "weighting", _WEIGHTINGS),
        checks.whole(params["lift"], "lift", 0),
        _one_of(params["activation"], "activation", _ACTIVATIONS),
        bool(params["fit_intercept"]),
    )


def penalty(aperture: Any, regularization: Any, solution: str) -> Penalty:
    """Both numbers, one of them given; for "joint" they are one, λ = α⁻².

    Raises:
        ValueError: both are given for "joint", and disagree.
    """
    alpha = None if _is_auto(aperture) else checked_aperture(aperture)
    given = None if regularization is None else checked_regularization(regularization)
    if solution != "joint":
        return Penalty(
            _APERTURE if alpha is None else alpha, _REGULARIZATION if given is None else given
        )
    if alpha is None:
        return Penalty(None if given is None else given**-0.5, given)
    if alpha > 1e150 or alpha < 1e-150:
        size = "large" if alpha > 1 else "small"
        raise ValueError(
            f"aperture {alpha:g} is too {size}: its square is out of range; scale the inputs"
        )
    if given is not None and not math.isclose(given, alpha**-2, rel_tol=1e-6):
        raise ValueError(
            f"aperture={alpha:g} and regularization={given:g} disagree: solution='joint' has "
            f"regularization = aperture⁻² = {alpha**-2:g}; give one of them, or take "
            f"solution='simplified', which has both"
        )
    return Penalty(alpha, alpha**-2)


def _is_auto(aperture: Any) -> bool:
    return isinstance(aperture, str) and aperture == "auto"


def _one_of(value: Any, name: str, choices: tuple[str, ...]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {[*choices]}, got {value!r}")
    return value
