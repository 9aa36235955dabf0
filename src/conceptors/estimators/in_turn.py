"""Tasks learned in turn: the weights so far, ΣR, and the free space that they leave."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conceptors.estimators import closed_form
from conceptors.estimators.sums import Sums

Solve = Callable[[Tensor, Tensor], Tensor]  # weights before and free space F to weights after
Increment = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]  # as in `closed_form`


@dataclass(frozen=True)
class InTurn:
    """What is known after some tasks (section 2.2 of the paper)."""

    weights: Tensor  # W [m, d]
    correlation: Tensor  # ΣR over the tasks [d, d]
    aperture: float
    regularization: float
    quota: float
    increment_norm: float  # |W - W_before| of the last task
    n_tasks: int
    names: tuple[Hashable, ...] = ()  # of tasks that have one
    last: Part | None = None


@dataclass(frozen=True)
class Part:
    """The last task, if it has a name and so may go on."""

    name: Hashable
    sums: Sums
    before: InTurn | None


def learned(
    before: InTurn | None,
    correlation: Tensor,
    outputs: int,
    aperture: float,
    regularization: float,
    solve: Solve,
) -> InTurn:
    """After one more task with moments R `[d, d]`; outputs beyond the earlier ones are new."""
    dim = len(correlation)
    previous = torch.zeros(outputs, dim, dtype=torch.float64)
    total, free = torch.zeros_like(correlation), torch.eye(dim, dtype=torch.float64)
    if before is not None:
        previous[: len(before.weights)] = before.weights
        total = before.correlation
        free = closed_form.free_space(total, aperture)
    total = total + correlation
    weights = solve(previous, free)
    claimed = 1 - closed_form.free_space(total, aperture).diagonal().mean()
    return InTurn(
        weights,
        total,
        aperture,
        regularization,
        quota=float(claimed),
        increment_norm=float((weights - previous).norm()),
        n_tasks=1 if before is None else before.n_tasks + 1,
        names=() if before is None else before.names,
    )


def learned_from_sums(
    before: InTurn | None,
    sums: Sums,
    task: Hashable | None,
    aperture: float,
    regularization: float,
    increment: Increment,
) -> InTurn:
    """The same in closed form; with the name of the last task, sums are a further part of it.

    Raises:
        ValueError: the task was learned before the last one.
    """
    if before is not None and task is not None and task in before.names:
        if before.last is None or before.last.name != task:
            raise ValueError(
                f"task {task!r} is over: others were learned since, in the space it left free; "
                f"give all its parts in a row, or use solution='joint'"
            )
        whole = before.last.sums.copy()
        whole.include(sums)
        sums, before = whole, before.last.before
    R, K = sums.gram / sums.count, sums.cross / sums.count

    def solve(previous: Tensor, free: Tensor) -> Tensor:
        padded = torch.zeros_like(previous)
        padded[: len(K)] = K
        return previous + increment(R, padded, previous, free, regularization)

    outputs = max(sums.outputs, 0 if before is None else len(before.weights))
    after = learned(before, R, outputs, aperture, regularization, solve)
    if task is None:
        return after
    kept = None if before is None else replace(before, last=None)
    return replace(after, names=(*after.names, task), last=Part(task, sums, kept))
