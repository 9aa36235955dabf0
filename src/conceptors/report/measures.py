"""What the figures and the page show, computed from checked results: means over seeds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from conceptors.report.text import ranges

Array = npt.NDArray[np.float64]
CEILINGS = frozenset({"joint"})  # sees all tasks at once: a bound, not a competitor


@dataclass(frozen=True)
class Band:
    """A curve over the number of learned tasks: mean and one standard deviation over seeds."""

    tasks: list[int]
    mean: Array  # [k]
    sd: Array | None  # [k], None with a single seed


@dataclass(frozen=True)
class Matrix:
    """Values for pairs of tasks: mean and one standard deviation over seeds."""

    mean: Array  # [rows, columns], NaN where there is no value
    sd: Array | None


def methods(results: dict[str, Any]) -> list[str]:
    """Every method that ran, in the order of the file."""
    return list(dict.fromkeys(run["method"] for run in results["runs"]))


def runs_of(results: dict[str, Any], method: str) -> list[dict[str, Any]]:
    """The runs of one method, by seed."""
    return sorted((r for r in results["runs"] if r["method"] == method), key=lambda r: r["seed"])


def task_count(results: dict[str, Any]) -> int:
    """How many tasks the scenario has."""
    return max(len(row) for run in results["runs"] for row in run["accuracy"])


def task_names(results: dict[str, Any]) -> list[str]:
    """Their names; numbers where none are given."""
    given: list[str] | None = results.get("task_names")
    return [ranges(name) for name in given or []] or [
        str(k + 1) for k in range(task_count(results))
    ]


def shares(results: dict[str, Any]) -> Array:
    """Each task's share of the test images, as far as the final accuracies tell; else equal ones.

    The final accuracy is over images, so it is the mean of the last row weighted by the shares.
    """
    tasks = task_count(results)
    equal = np.full(tasks, 1.0 / tasks)
    last = np.array([run["accuracy"][-1] for run in results["runs"]], dtype=float) / 100
    final = np.array([run["final_accuracy"] for run in results["runs"]], dtype=float) / 100
    rows, values = np.vstack([last, np.ones(tasks)]), np.append(final, 1.0)
    found = equal + np.linalg.pinv(rows, rcond=1e-2) @ (values - rows @ equal)
    return equal if (found <= 0).any() else found / found.sum()


def seen_so_far(results: dict[str, Any], method: str) -> Band:
    """Accuracy on the test images of the tasks seen so far, after each (the paper's figure 1)."""
    curves, tasks, weights = [], task_count(results), shares(results)
    for run in runs_of(results, method):
        rows = run["accuracy"][:-1]
        seen = [np.average(r[: i + 1], weights=weights[: i + 1]) for i, r in enumerate(rows)]
        curves.append([*seen, run["final_accuracy"]])
    k = min(len(curve) for curve in curves)
    first = tasks - k + 1
    mean, sd = _over_seeds(np.array([curve[-k:] for curve in curves]))
    return Band(list(range(first, tasks + 1)), mean, sd)


def accuracy_matrix(results: dict[str, Any], method: str) -> Matrix:
    """Accuracy on task j (column) after task i (row)."""
    tasks = task_count(results)
    runs = runs_of(results, method)
    rows = min(len(run["accuracy"]) for run in runs)
    stack = np.full((len(runs), rows, tasks), np.nan)
    for s, run in enumerate(runs):
        for i, row in enumerate(run["accuracy"][-rows:]):
            stack[s, i, : len(row)] = row
    return Matrix(*_over_seeds(stack))


def each_task(results: dict[str, Any], method: str) -> dict[int, Band]:
    """Accuracy of every task from when it was learned to the end, by its number from 1."""
    matrix = accuracy_matrix(results, method)
    rows, tasks = matrix.mean.shape
    found = {}
    for task in range(1, tasks + 1):
        after = range(max(task, tasks - rows + 1), tasks + 1)
        cut = slice(after[0] - (tasks - rows + 1), None)
        sd = None if matrix.sd is None else matrix.sd[cut, task - 1]
        found[task] = Band(list(after), matrix.mean[cut, task - 1], sd)
    return found


def learning(results: dict[str, Any], method: str, part: str) -> dict[int, dict[int, float]]:
    """`validation` or `loss` while each task (from 1) was learned, by step, mean over seeds."""
    found: dict[int, dict[int, list[float]]] = {}
    for run in runs_of(results, method):
        for entry in run.get("history") or []:
            steps = found.setdefault(int(entry.get("task", 0)) + 1, {})
            for step, value in zip(entry.get("step") or [], entry.get(part) or []):
                if value is not None and math.isfinite(value):
                    steps.setdefault(step, []).append(value)
    return {
        task: {step: float(np.mean(steps[step])) for step in sorted(steps)}
        for task, steps in sorted(found.items())
        if steps
    }


def quotas(results: dict[str, Any], method: str) -> dict[str, Band]:
    """The share of each layer's space that is claimed after each task."""
    bands = {}
    for layer in _layer_names(results, method, "quota"):
        given = [r["quota"][layer] for r in runs_of(results, method) if layer in _of(r, "quota")]
        k = min(len(values) for values in given)
        if k:
            mean, sd = _over_seeds(np.array([values[:k] for values in given]))
            bands[layer] = Band(list(range(1, k + 1)), mean, sd)
    return bands


def spectra(results: dict[str, Any], method: str) -> dict[str, list[Array]]:
    """Singular values of each layer's A after each task, averaged over seeds where they match."""
    found = {}
    for layer in _layer_names(results, method, "spectra"):
        given = [
            [np.array(values, dtype=float) for values in run["spectra"][layer]]
            for run in runs_of(results, method)
            if layer in _of(run, "spectra")
        ]
        sizes = {tuple(len(values) for values in tasks) for tasks in given}
        chosen = given if len(sizes) == 1 else given[:1]
        found[layer] = [np.mean([run[k] for run in chosen], axis=0) for k in range(len(chosen[0]))]
    return found


def claimed(results: dict[str, Any], method: str, layer: str, values: list[Array]) -> list[float]:
    """The quota that belongs to each spectrum: the recorded one, else the mean value."""
    band = quotas(results, method).get(layer)
    if band is not None and len(band.mean) == len(values):
        return [float(q) for q in band.mean]
    return [float(v.mean()) for v in values]


def similarities(results: dict[str, Any]) -> dict[str, Matrix]:
    """Similarity between tasks by method; methods with the same one share an entry."""
    found: dict[str, Matrix] = {}
    for method in methods(results):
        given = [r["similarity"] for r in runs_of(results, method) if r.get("similarity")]
        sizes = {len(rows) for rows in given}
        if not given:
            continue
        mean, sd = _over_seeds(np.array(given if len(sizes) == 1 else given[:1], dtype=float))
        same = [m for m, other in found.items() if np.array_equal(other.mean, mean)]
        if same:
            other = found.pop(same[0])
            found[f"{same[0]}, {method}"] = other
        else:
            found[method] = Matrix(mean, sd)
    return found


def floor_of(matrices: list[Matrix]) -> float:
    """Where the colour scale of accuracies starts: a round number below all learned tasks."""
    low = min(
        (float(np.nanmin(np.where(learned(m.mean), m.mean, np.nan))) for m in matrices), default=0.0
    )
    return max(10.0 * math.floor(min(low, 90.0) / 10.0), 0.0)


def learned(matrix: Array) -> npt.NDArray[np.bool_]:
    """Which cells are of tasks already learned: on and below the diagonal."""
    rows, columns = matrix.shape
    kept: npt.NDArray[np.bool_] = np.tri(rows, columns, columns - rows, dtype=bool)
    return kept


def some(items: int, most: int) -> list[int]:
    """At most `most` of the indices 0 ... items - 1, evenly spread, with both ends.

    >>> some(100, 5)
    [0, 25, 50, 74, 99]
    """
    if items <= most:
        return list(range(items))
    return sorted({round(k * (items - 1) / (most - 1)) for k in range(most)})


def milestones(tasks: int, most: int = 10) -> list[int]:
    """Numbers of tasks worth a curve of their own: all up to `most`, else 1, 2, 5, 10, 20, ...

    >>> milestones(3), milestones(100)
    ([1, 2, 3], [1, 2, 5, 10, 20, 50, 100])
    """
    if tasks <= most:
        return list(range(1, tasks + 1))
    powers = [m * 10**k for k in range(len(str(tasks))) for m in (1, 2, 5)]
    return [*(p for p in powers if p < tasks), tasks]


def final_accuracies(results: dict[str, Any], method: str) -> list[tuple[int, float]]:
    """(seed, final accuracy) pairs of one method."""
    return [(run["seed"], float(run["final_accuracy"])) for run in runs_of(results, method)]


def _over_seeds(values: Array) -> tuple[Array, Array | None]:
    mean: Array = np.mean(values, axis=0)
    return mean, np.std(values, axis=0, ddof=1) if len(values) > 1 else None


def _layer_names(results: dict[str, Any], method: str, part: str) -> list[str]:
    return list(dict.fromkeys(n for r in runs_of(results, method) for n in _of(r, part)))


def _of(run: dict[str, Any], part: str) -> dict[str, Any]:
    return run.get(part) or {}
