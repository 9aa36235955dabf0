"""Results as tidy pandas tables with one row per number, from a checked `results.json`.

Tasks are counted from 1. `after` is the number of tasks learned so far.
"""

from typing import Any

import pandas as pd

from conceptors.report.text import setting

CEILINGS = frozenset({"joint"})  # these see all tasks at once: a bound, not a competitor
_RUN = ["method", "seed"]


def methods(results: dict[str, Any]) -> list[str]:
    """Return every method that ran, in the order of the file."""
    return list(dict.fromkeys(run["method"] for run in results["runs"]))


def task_count(results: dict[str, Any]) -> int:
    """Return the number of tasks of the scenario."""
    return max(len(row) for run in results["runs"] for row in run["accuracy"])


def task_names(results: dict[str, Any]) -> list[str]:
    """Return the names of the tasks, or their numbers if the file has no names."""
    return results.get("task_names") or [str(k + 1) for k in range(task_count(results))]


def over_seeds(frame: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Compute mean `value` and standard deviation `sd` over seeds (NaN for a single seed)."""
    groups = frame.groupby(list(keys), sort=False)["value"]
    return groups.agg(value="mean", sd="std").reset_index()


def pairs(results: dict[str, Any], part: str = "accuracy") -> pd.DataFrame:
    """`method, seed, after, task, value`: accuracy on every task after every task, in percent.

    `part` may also be "similarity", which has the same form.
    """
    rows = [
        (run["method"], run["seed"], after, task, value)
        for run in results["runs"]
        if run.get(part)
        for after, row in enumerate(run[part], 1)
        for task, value in enumerate(row, 1)
    ]
    return pd.DataFrame(rows, columns=[*_RUN, "after", "task", "value"])


def accuracy_so_far(results: dict[str, Any]) -> pd.DataFrame:
    """`method, seed, after, value`: mean accuracy of the tasks seen so far (the paper's figure 1).

    The last value is the final accuracy over all test samples.
    """
    frame = pairs(results)
    seen = frame[frame.task <= frame.after].groupby([*_RUN, "after"], sort=False)
    means = seen["value"].mean().reset_index()
    finals = {(run["method"], run["seed"]): run["final_accuracy"] for run in results["runs"]}
    final = [finals[pair] for pair in zip(means.method, means.seed)]
    return means.assign(value=means.value.where(means.after < task_count(results), final))


def quotas(results: dict[str, Any]) -> pd.DataFrame:
    """`method, seed, layer, after, value`: the share of each layer's space that is protected."""
    rows = [
        (run["method"], run["seed"], layer, after, value)
        for run in results["runs"]
        for layer, values in (run.get("quota") or {}).items()
        for after, value in enumerate(values, 1)
    ]
    return pd.DataFrame(rows, columns=[*_RUN, "layer", "after", "value"])


def spectra(results: dict[str, Any]) -> pd.DataFrame:
    """`method, seed, layer, after, index, value`: at most 160 singular values of A per task."""
    rows = [
        (run["method"], run["seed"], layer, task + 1, k + 1, tasks[task][k])
        for run in results["runs"]
        for layer, tasks in (run.get("spectra") or {}).items()
        for task in evenly(len(tasks), 10)
        for k in evenly(len(tasks[task]), 160)
    ]
    return pd.DataFrame(rows, columns=[*_RUN, "layer", "after", "index", "value"])


def settings(results: dict[str, Any]) -> pd.DataFrame:
    """Return all settings except the seed: one row per setting, one column per method."""
    rows = [
        (run["method"], str(key), setting(value))
        for run in results["runs"]
        for key, value in (run.get("config") or {}).items()
        if key != "seed"
    ]
    frame = pd.DataFrame(rows, columns=["method", "key", "value"]).drop_duplicates()
    joined = frame.groupby(["key", "method"], sort=False)["value"].agg(", ".join)
    return joined.unstack().reindex(index=frame.key.unique(), columns=methods(results))


def evenly(items: int, most: int) -> list[int]:
    """Return at most `most` of the indices 0 ... items - 1, evenly spread, with both ends.

    >>> evenly(100, 5)
    [0, 25, 50, 74, 99]
    """
    return sorted({round(k * (items - 1) / (most - 1)) for k in range(most)})
