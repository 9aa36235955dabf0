"""What an estimator stores of its tasks: the sums of all of them, or weights and free space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from conceptors.estimators import closed_form
from conceptors.readout.solve import solve
from conceptors.readout.sums import Sums

_VARIATION = 1e-13  # of inputs relative to their squares, below which it is rounding


class MemoryFullWarning(UserWarning):
    """The tasks learned so far use nearly the whole input space."""


@dataclass(frozen=True)
class Known:
    """A linear model, and the space that its tasks use; b `[d]` is x, or [x; 1]."""

    weights: Tensor  # W [m, d], outputs in the order in which they came
    correlation: Tensor  # R [d, d] that the aperture refers to
    aperture: float
    regularization: float
    quota: float
    n_tasks: int


class JointRidge:
    """Ridge regression on all tasks at once, from sums, in any order: W = K (R + λ I)⁻¹.

    R = E[b bᵀ] and K = E[y bᵀ] are over all samples.

    Args:
        constant: whether rows b end in a constant 1.
        of_classes: whether outputs are scores of classes, of which only the largest matters.
        scaled: whether a chosen λ refers to inputs of mean 0 and mean square 1 over all tasks.
    """

    def __init__(self, *, constant: bool, of_classes: bool, scaled: bool) -> None:
        self._constant, self._of_classes, self._scaled = constant, of_classes, scaled
        self._sums: Sums | None = None
        self._given: float | None = None
        self._solved: Known | None = None
        self._n_tasks = 0

    def learn(self, sums: Sums, given: float | None) -> None:
        """Add the sums of a task. λ is `given`, or chosen if that is None."""
        if self._sums:
            sums.include(self._sums)
        self._sums, self._given, self._solved = sums, given, None
        self._n_tasks += 1

    def known(self) -> Known:
        """The solution, computed when it is first needed."""
        self._solved = self._solved or self._solve()
        return self._solved

    def _solve(self) -> Known:
        assert self._sums is not None
        total, given = Sums(self._sums.dim), self._given
        total.include(self._sums)
        d = total.dim - self._constant
        shift, scale = torch.zeros(d, dtype=torch.float64), 1.0
        if self._scaled and given is None:
            shift, scale = _standardise(total, self._constant)
        around_mean = self._constant and (given is None or not self._scaled)
        if given is None and not bool(total.gram.any()):
            given = 1.0  # any λ gives W = 0
        solution = solve(total, given, around_mean=around_mean, largest=self._of_classes)
        weights = solution.weights.clone()
        weights[:, :d] *= scale
        if self._constant:
            weights[:, -1] -= weights[:, :d] @ shift
        return Known(
            weights,
            total.gram / total.count,
            solution.regularization**-0.5,
            solution.regularization,
            solution.quota,
            self._n_tasks,
        )


def _standardise(sums: Sums, constant: bool) -> tuple[Tensor, float]:
    """Change sums over [x; 1] to z = t (x - m) with mean 0 and mean square 1; returns m and t."""
    G, K, d = sums.gram, sums.cross, sums.dim - constant
    squares = G.diagonal()[:d].clone() / sums.count
    mean = torch.zeros_like(squares)
    if constant:
        mean = G[-1, :-1] / sums.count
        G[:-1, :-1] -= torch.outer(mean, mean) * sums.count
        G[-1, :-1] = G[:-1, -1] = 0
        K[:, :-1] -= torch.outer(K[:, -1], mean)
    size = float((squares - mean.square()).mean())
    if size <= _VARIATION * float(squares.mean()):  # constant inputs
        size = float(squares.mean()) or 1.0
        G[:d, :d] = 0
    scale = size**-0.5
    G[:d] *= scale
    G[:, :d] *= scale
    K[:, :d] *= scale
    return mean, scale


def learned_in_turn(
    before: Known | None,
    correlation: Tensor,
    outputs: int,
    aperture: float,
    regularization: float,
    solve_task: Callable[[Tensor, Tensor], Tensor],
) -> Known:
    """After one more task with moments R `[d, d]`, learned in turn (section 2.2 of the paper).

    `solve_task` returns the weights after the task, given the weights before it and F. Outputs
    beyond the earlier ones are new.
    """
    dim = len(correlation)
    outputs = max(outputs, 0 if before is None else len(before.weights))
    previous = torch.zeros(outputs, dim, dtype=torch.float64)
    total, free = torch.zeros_like(correlation), torch.eye(dim, dtype=torch.float64)
    if before is not None:
        previous[: len(before.weights)] = before.weights
        total = before.correlation
        free = closed_form.free_space(total, aperture)
    total = total + correlation
    weights = solve_task(previous, free)
    return Known(
        weights,
        total,
        aperture,
        regularization,
        quota=float(1 - closed_form.free_space(total, aperture).diagonal().mean()),
        n_tasks=1 if before is None else before.n_tasks + 1,
    )
