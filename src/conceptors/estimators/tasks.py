"""What an estimator knows after some tasks: the sums of all of them, or weights and free space."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from conceptors.estimators import closed_form
from conceptors.readout.solve import Solution, solve
from conceptors.readout.sums import Sums

_VARIATION = 1e-13  # of inputs relative to their squares, below which it is rounding


class MemoryFullWarning(UserWarning):
    """The tasks learned so far claim nearly the whole input space."""


class Joint:
    """Ridge regression on all tasks at once, from sums, in whatever order they came.

    W = K (R + λ I)⁻¹ with R = E[b bᵀ], K = E[y bᵀ] over all samples, or, where tasks count equally,
    with R = Σ_t E_t[b bᵀ] and K = Σ_t E_t[y bᵀ]: the OR of the tasks' conceptors at aperture λ^-½.

    Args:
        constant: whether rows b end in a constant 1.
        by_task: each task counts equally, whatever its number of samples.
        of_classes: outputs are of classes, of which the largest counts.
        scaled: a chosen λ refers to inputs of mean 0 and mean square 1 over all tasks, so neither
            their units nor the order of tasks matters. A given λ refers to b as it is.
    """

    def __init__(self, *, constant: bool, by_task: bool, of_classes: bool, scaled: bool) -> None:
        self._constant, self._by_task = constant, by_task
        self._of_classes, self._scaled = of_classes, scaled
        self._sums: Sums | None = None
        self._samples = 0.0
        self._given: float | None = None
        self._solved: tuple[Solution, Tensor, Tensor] | None = None
        self.n_tasks = 0

    def learn(self, sums: Sums, rows: int, given: float | None) -> None:
        """Add the sums of a task of so many rows. λ is `given`, or chosen if that is None.

        Weights count as repetitions of a sample. But if they sum to less than the number of rows,
        generalised cross-validation would believe that there are hardly any data.
        """
        self._sums = self._sums or Sums(sums.dim)
        self._sums.include(sums, 1 / sums.count if self._by_task else 1.0)
        self._samples += max(sums.count, rows)
        self._given, self._solved = given, None
        self.n_tasks += 1

    @property
    def weights(self) -> Tensor:
        """W `[m, d]` on b as it was given."""
        return self._solution()[1]

    @property
    def correlation(self) -> Tensor:
        """R `[d, d]`, in the units that λ refers to."""
        return self._solution()[2]

    @property
    def regularization(self) -> float:
        return self._solution()[0].regularization * self._parts

    @property
    def aperture(self) -> float:
        return 1 / math.sqrt(self.regularization)

    @property
    def quota(self) -> float:
        return self._solution()[0].quota

    @property
    def _parts(self) -> int:
        """R is this many times a mean."""
        return self.n_tasks if self._by_task else 1

    def _solution(self) -> tuple[Solution, Tensor, Tensor]:
        """The solution, weights in the units of b, and R."""
        if self._solved is None:
            assert self._sums is not None
            total = Sums(self._sums.dim)
            total.include(self._sums, self._samples / self._sums.count)
            given = None if self._given is None else self._given / self._parts
            is_literal = given is not None and self._scaled
            shift, scale = None, 1.0
            if self._scaled and given is None:
                shift, scale = _standardise(total, self._constant)
            correlation = total.gram * (self._parts / total.count)
            if given is None and not bool(total.gram.any()):
                given = 1.0  # any λ gives W = 0
            around_mean = self._constant and not is_literal
            solution = solve(total, given, around_mean=around_mean, largest=self._of_classes)
            weights = solution.weights.clone()
            if shift is not None:
                inputs = weights[:, : len(shift)]
                inputs *= scale
                if self._constant:
                    weights[:, -1] -= inputs @ shift
            self._solved = solution, weights, correlation
        return self._solved


def _standardise(sums: Sums, constant: bool) -> tuple[Tensor, float]:
    """Change sums over [x; 1] to z = t (x - m) with mean 0 and mean square 1; returns m and t.

    Without a constant m is 0.
    """
    G, K, n = sums.gram, sums.cross, sums.count
    d = sums.dim - constant
    squares = G.diagonal()[:d].clone() / n
    mean = torch.zeros_like(squares)
    if constant:
        total = G[-1, :-1].clone()
        mean = total / n
        G[:-1, :-1] -= torch.outer(total, mean)
        G[-1, :-1] = G[:-1, -1] = 0
        K[:, :-1] -= torch.outer(K[:, -1], mean)
    size = float((squares - mean.square()).mean())
    if size <= _VARIATION * float(squares.mean()):  # constant inputs
        size = float(squares.mean()) or 1.0
        G[:d, :d] = 0
    scale = 1 / math.sqrt(size)
    G[:d] *= scale
    G[:, :d] *= scale
    K[:, :d] *= scale
    return mean, scale


@dataclass(frozen=True)
class InTurn:
    """What is known after tasks that were learned in turn (section 2.2 of the paper)."""

    weights: Tensor  # W [m, d]
    correlation: Tensor  # ΣR over the tasks [d, d]
    aperture: float
    regularization: float
    quota: float
    increment_norm: float  # |W - W_before| of the last task
    n_tasks: int


def learned(
    before: InTurn | None,
    correlation: Tensor,
    outputs: int,
    aperture: float,
    regularization: float,
    solve_task: Callable[[Tensor, Tensor], Tensor],
) -> InTurn:
    """After one more task with moments R `[d, d]`; outputs beyond the earlier ones are new.

    `solve_task` returns the weights after the task, given the weights before it and F.
    """
    dim = len(correlation)
    previous = torch.zeros(outputs, dim, dtype=torch.float64)
    total, free = torch.zeros_like(correlation), torch.eye(dim, dtype=torch.float64)
    if before is not None:
        previous[: len(before.weights)] = before.weights
        total = before.correlation
        free = closed_form.free_space(total, aperture)
    total = total + correlation
    weights = solve_task(previous, free)
    return InTurn(
        weights,
        total,
        aperture,
        regularization,
        quota=float(1 - closed_form.free_space(total, aperture).diagonal().mean()),
        increment_norm=float((weights - previous).norm()),
        n_tasks=1 if before is None else before.n_tasks + 1,
    )
