"""`results.json`: what a run writes, and what resuming and the report read.

A run has a method, a seed, its accuracy in percent (one row after each task, one column per task),
final_accuracy, forgetting, seconds, config (the method's settings) and what its method adds: quota,
spectra, similarity. A failure has a method, a seed, a reason and a config.

A file that is damaged, or that another program wrote, raises a ValueError that names the file and
the first wrong place in it (`runs[2].accuracy[0][1]`).
"""

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conceptors._internal.storage import write_atomically

SCHEMA = 1
_MOST_NESTED = 50


def add_entry(results: dict[str, Any], entry: dict[str, Any], methods: Sequence[str]) -> None:
    """Add a run, or a failure (it has a reason), in the order of methods and seeds."""
    results["failed" if "reason" in entry else "runs"].append(entry)
    results["failed"].sort(key=lambda failure: (failure["method"], failure["seed"]))
    results["runs"].sort(key=lambda run: (methods.index(run["method"]), run["seed"]))
    results["summary"] = summarise(results["runs"])


def write_results(results: dict[str, Any], path: Path) -> None:
    """Write the whole file, or leave the old one."""
    # half of a surrogate pair cannot be encoded, but JSON has an escape for it: the same one
    write_atomically(path, readable(results).encode("utf-8", "backslashreplace"))


def summarise(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over seeds, one row per method."""
    summary: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        of_method = [run for run in runs if run["method"] == method]
        final = [run["final_accuracy"] for run in of_method]
        std = round(statistics.stdev(final), 4) if len(final) > 1 else 0.0
        summary[method] = {"mean": round(statistics.mean(final), 4), "std": std, "n": len(final)}
        for name in ("forgetting", "seconds"):
            values = [run[name] for run in of_method if run.get(name) is not None]
            summary[method][name] = round(statistics.mean(values), 4) if values else None
    return summary


def measures(accuracy: list[list[float]], sizes: list[int]) -> dict[str, float]:
    """Final accuracy over all test samples, and mean forgetting, in percent.

    `sizes` are the numbers of test samples per task. Forgetting is the best accuracy on a task
    since it was learned minus the last one, its mean is over all tasks but the last.

    >>> measures([[90.0, 5.0], [80.0, 70.0]], [1, 1])
    {'final_accuracy': 75.0, 'forgetting': 10.0}
    """
    last, old = accuracy[-1], range(len(sizes) - 1)
    forgotten = sum(max(row[j] for row in accuracy[j:]) - last[j] for j in old)
    forgetting = round(forgotten / max(1, len(old)), 4)
    return {"final_accuracy": round(overall(last, sizes), 4), "forgetting": forgetting}


def overall(accuracies: list[float], sizes: list[int]) -> float:
    """Accuracy over all samples, from that on tasks with so many samples."""
    return sum(a * n for a, n in zip(accuracies, sizes)) / sum(sizes)


def readable(content: Any) -> str:
    """JSON with one line per value, but lists of numbers on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    # ++ never backtracks; otherwise deeply indented content would take minutes
    numbers = r"\[\n\s*+([-+\d.eE,\s]++)\]"
    return re.sub(numbers, lambda m: f"[{' '.join(m[1].split())}]", text)


# --- reading -----------------------------------------------------------------------------

# Kinds of values, and the places that must be of that kind. A name that ends in ? may be missing or
# null, [] stands for every item of a list, * for every name. A file may contain more.
_FORM = {
    "1": "schema",
    "a text": "scenario preset? command? task_names?[] deviations?[] reference?.*.source? "
    "runs[].method failed?[].method failed?[].reason",
    "an object": "environment options? runs[].config failed?[].config",
    "a whole number": "runs[].seed failed?[].seed",
    "a finite number": "summary.*.mean summary.*.std? summary.*.n? summary.*.forgetting? "
    "summary.*.seconds? reference?.*.mean reference?.*.std? runs[].forgetting?",
    "a finite number >= 0": "runs[].seconds",
    "a finite number in [0, 100]": "runs[].accuracy[][] runs[].final_accuracy",
    "a finite number in [0, 1]": "runs[].similarity?[][] runs[].quota?.*[] runs[].spectra?.*[][]",
}
_LIMITS = {  # of each kind of number; single precision rounds
    "1": (SCHEMA, SCHEMA),
    "a whole number": (-(2**64), 2**64),
    "a finite number": (-1e300, 1e300),
    "a finite number >= 0": (0, 1e300),
    "a finite number in [0, 100]": (-0.01, 100.01),
    "a finite number in [0, 1]": (-0.0001, 1.0001),
}


def _is_kind(value: Any, kind: str) -> bool:
    if kind in ("a text", "an object"):
        return isinstance(value, str if kind == "a text" else dict)
    is_number = isinstance(value, int if kind in ("1", "a whole number") else (int, float))
    low, high = _LIMITS[kind]
    return is_number and not isinstance(value, bool) and low <= value <= high


def read_results(path: Path | str, *, finished: bool = True) -> dict[str, Any]:
    """Read and check a `results.json`, which must have at least one run if `finished`.

    Raises:
        ValueError: the file is damaged, or has another form.
        OSError: the file cannot be read.
    """
    path = Path(path)
    try:
        content: dict[str, Any] = json.loads(path.read_bytes().decode("utf-8"))
        json.dumps(content, allow_nan=False)  # fails for NaN and infinity anywhere
        _check(content, finished)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON ({error.msg} at line {error.lineno}, column {error.colno}). It "
            f"may have been cut short. Move it away and run the experiment again."
        ) from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a results file") from None
    except ValueError as error:  # also a UnicodeDecodeError, or numbers too long for Python
        reason = _cut(str(error), 300)
        raise ValueError(f"{path} is not a results file of conceptors: {reason}") from None
    return content


def _check(results: Any, finished: bool) -> None:
    """Raise a ValueError that names the first place that is not as it must be."""
    level = [results]
    for _ in range(_MOST_NESTED):
        parts = [list(part.values()) if isinstance(part, dict) else part for part in level]
        level = [item for part in parts if isinstance(part, list) for item in part]
    if level:
        raise ValueError(f"it is nested more than {_MOST_NESTED} times")
    for kind, paths in _FORM.items():
        for path in paths.split():
            for where, value in _values(results, re.findall(r"\[\]|\*|\w+\??", path), ""):
                if not _is_kind(value, kind):
                    raise ValueError(f"{where} must be {kind}, got {_cut(repr(value))}")
    runs, failed = results["runs"], results.get("failed") or []
    if not runs and (finished or not failed):
        reason = "{method} seed {seed} {reason}".format(**failed[0]) if failed else "none finished"
        raise ValueError(f"runs is empty: {_cut(reason)}")
    rows = runs[0]["accuracy"] if runs else []
    tasks = len(results.get("task_names") or ()) or max(map(len, rows), default=0)
    pairs: set[tuple[str, int]] = set()
    for k, run in enumerate(runs):
        _check_run(run, f"runs[{k}]", tasks)
        if (pair := (run["method"], run["seed"])) in pairs:
            raise ValueError(f"runs[{k}] is a second run of a method with seed {run['seed']}")
        pairs.add(pair)
    for name in {run["method"] for run in runs} ^ set(results["summary"]):
        raise ValueError(f"summary and runs must have the same methods, got {_cut(repr(name))}")


def _values(value: Any, path: list[str], where: str) -> Iterator[tuple[str, Any]]:
    """All values at a path, with their places in words."""
    if not path:
        yield where, value
        return
    name, rest = path[0], path[1:]
    kind: type[Any] = list if name == "[]" else dict
    words = "a list" if name == "[]" else "an object"
    if not isinstance(value, kind):
        raise ValueError(f"{where or 'the file'} must be {words}, got {_cut(repr(value))}")
    if name == "[]":
        for k, item in enumerate(value):
            yield from _values(item, rest, f"{where}[{k}]")
    elif name == "*":
        for key, item in value.items():
            yield from _values(item, rest, f"{where}[{_cut(repr(key))}]")
    elif name[-1] != "?" or value.get(name[:-1]) is not None:
        key = name.removesuffix("?")
        yield from _values(value.get(key), rest, f"{where}.{key}".removeprefix("."))


def _check_run(run: dict[str, Any], where: str, tasks: int) -> None:
    """Raise a ValueError for rows that do not fit the number of tasks."""
    rows, similarity = run["accuracy"], run.get("similarity") or []
    if len(rows) != tasks or max(map(len, rows), default=0) != tasks:
        raise ValueError(f"{where}.accuracy must have a row and a column for each of {tasks} tasks")
    for i, row in enumerate(rows):
        if len(row) < i + 1:
            raise ValueError(f"{where}.accuracy[{i}] must have at least {i + 1} values")
    if any(len(row) != len(similarity) for row in similarity):
        raise ValueError(f"{where}.similarity must have one row and one column per task")
    if not all(all(spectra) for spectra in (run.get("spectra") or {}).values()):
        raise ValueError(f"{where}.spectra must have values for every task")


def _cut(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
