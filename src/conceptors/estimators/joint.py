"""All tasks so far at once: ridge regression from sums, in whatever order they came.

W = K (R + λ I)⁻¹ with R = E[b bᵀ], K = E[y bᵀ] over all samples, or, where tasks count equally,
with R = Σ_t E_t[b bᵀ] and K = Σ_t E_t[y bᵀ]: the OR of the tasks' conceptors at aperture λ^-½.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from conceptors.estimators.lift import Lift, Scaling
from conceptors.estimators.solve import Solution, solve
from conceptors.estimators.sums import Sums


class Frame(NamedTuple):
    """Units of the inputs: x is seen as z = scale (x - shift)."""

    shift: Tensor  # [d]
    scale: float


class Joint:
    """Sums of all tasks, and their solution once it is asked for.

    Args:
        lift: what the sums' inputs came through; a `Scaling` is undone.
        fit_intercept: whether the last column of the sums is a constant 1.
        by_task: each task counts equally, whatever its number of samples.
        classes: outputs are of classes, of which the largest counts.
    """

    def __init__(
        self, lift: Lift, fit_intercept: bool, by_task: bool, classes: bool = False
    ) -> None:
        self._lift, self._constant, self._by_task = lift, fit_intercept, by_task
        self._classes = classes
        self._closed = Sums(0)  # of tasks that cannot grow any more; each of count 1 if by task
        self._open: dict[Hashable, Sums] = {}  # by name, if by task
        self._names: set[Hashable] = set()
        self._samples = 0.0
        self._rows = 0
        self._outputs = 0
        self._wanted: float | None = None
        self._solved: tuple[Solution, Tensor] | None = None
        self.n_tasks = 0

    def learn(self, sums: Sums, rows: int, task: Hashable | None, wanted: float | None) -> None:
        """Add the sums of some rows. λ is `wanted`, or chosen if that is None."""
        if task is not None and self._by_task:
            self._open.setdefault(task, Sums(sums.dim)).include(sums)
        else:
            if not self._closed.dim:
                self._closed = Sums(sums.dim)
            self._closed.include(sums, 1 / sums.count if self._by_task else 1.0)
        if task is None or task not in self._names:
            self.n_tasks += 1
        if task is not None:
            self._names.add(task)
        self._samples += sums.count
        self._rows += rows
        self._outputs = max(self._outputs, sums.outputs)
        self._wanted, self._solved = wanted, None

    @property
    def weights(self) -> Tensor:
        """W `[m, d]` on the inputs as they were given, or on random features."""
        return self._solution()[1]

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
    def correlation(self) -> Tensor:
        """R `[d, d]`, in the units that λ refers to."""
        total, _ = self._framed()
        return total.gram * (self._parts / total.count)

    @property
    def _parts(self) -> int:
        """R is that many times the mean."""
        return self.n_tasks if self._by_task else 1

    def _total(self) -> Sums:
        """Of all tasks, as many samples as there were.

        Weights count as repetitions of a sample, but for all of them together to count less than
        there are rows would tell generalised cross-validation that there is hardly any data.
        """
        count = max(self._samples, self._rows)
        if not self._by_task and count == self._samples:
            return self._closed
        share = count / (self.n_tasks if self._by_task else self._samples)
        total = Sums(0)
        for sums, factor in [
            (self._closed, share),
            *((sums, share / sums.count) for sums in self._open.values()),
        ]:
            if sums.dim:
                total = total if total.dim else Sums(sums.dim, self._outputs)
                total.include(sums, factor)
        return total

    def _framed(self) -> tuple[Sums, Frame | None]:
        """The sums in the units in which they are solved, None for random features'.

        A given λ refers to the inputs as they are. A chosen one refers to inputs of mean 0 and
        mean square 1 over all tasks, so that neither their size nor the first task matters.
        """
        total = self._total()
        if not isinstance(self._lift, Scaling):
            return total, None
        now = Frame(self._lift.center.double(), float(self._lift.scale))
        if self._wanted is None:
            wanted = _overall(total, now, self._constant)
        else:
            wanted = Frame(torch.zeros_like(now.shift), 1.0)
        return _moved(total, now, wanted, self._constant), wanted

    def _solution(self) -> tuple[Solution, Tensor]:
        if self._solved is None:
            total, frame = self._framed()
            literal = self._wanted is not None and frame is not None
            empty = not bool(total.gram.any())  # any λ gives W = 0
            wanted = None if self._wanted is None else self._wanted / self._parts
            wanted = 1.0 if empty and wanted is None else wanted
            around_mean = self._constant and not literal
            found = solve(total, wanted, around_mean=around_mean, largest=self._classes)
            weights = found.weights.clone()
            if frame is not None:
                inputs = weights[:, : len(frame.shift)]
                inputs *= frame.scale
                if self._constant:
                    weights[:, -1] -= inputs @ frame.shift
            self._solved = found, weights
        return self._solved


def _overall(sums: Sums, now: Frame, constant: bool) -> Frame:
    """Units in which the inputs have mean 0 (if there is a constant) and mean square 1."""
    d = len(now.shift)
    squares = sums.gram.diagonal()[:d] / sums.count
    mean = sums.gram[-1, :d] / sums.count if constant else torch.zeros_like(squares)
    size = float((squares - mean.square()).mean())
    if size <= 1e-14 * float(squares.mean()):  # constant inputs
        return now
    return Frame(now.shift + mean / now.scale, now.scale / math.sqrt(size))


def _moved(sums: Sums, now: Frame, wanted: Frame, constant: bool) -> Sums:
    """Sums over b = [z; 1] for inputs in other units: z' = t (z - m)."""
    t = wanted.scale / now.scale
    m = (wanted.shift - now.shift) * now.scale
    if t == 1 and not bool(m.any()):
        return sums
    moved = sums.copy()
    if not constant:
        moved.gram *= t * t
        moved.cross *= t
        return moved
    G, K, n = moved.gram, moved.cross, sums.count
    total = G[-1, :-1].clone()  # Σ z
    G[:-1, :-1] -= torch.outer(m, total - n * m) + torch.outer(total, m)
    G[:-1, :-1] *= t * t
    G[-1, :-1] = G[:-1, -1] = t * (total - n * m)
    K[:, :-1] = t * (K[:, :-1] - torch.outer(K[:, -1], m))
    return moved
