"""`results.json`: what a run writes, and what resuming and the report read.

A file that is damaged, or that something else wrote, ends in a ValueError that names the file and
the first wrong place in it (`runs[2].accuracy[0][1]`).
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from conceptors._internal.storage import write_atomically

SCHEMA = 1
_DEEPEST = 50
_RESERVED = {  # properties of every object in JavaScript, where charts look names up
    *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString"),
    *("toString", "valueOf", "__proto__", "__defineGetter__", "__defineSetter__"),
    *("__lookupGetter__", "__lookupSetter__"),
}


@dataclass
class Results:
    """All runs of an experiment, with what is needed to resume and to show them.

    A run has a method, a seed, its accuracy in percent (one row after each task, one column per
    task), final_accuracy, forgetting, backward_transfer, seconds, config (the method's settings)
    and what its method adds: history, quota, spectra, ... A failure has a method, a seed, a reason
    and a config.
    """

    scenario: str
    preset: str | None = None
    command: str | None = None
    identity: dict[str, Any] = field(default_factory=dict)  # what must be the same to resume
    task_names: list[str] = field(default_factory=list)
    deviations: list[str] = field(default_factory=list)
    reference: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Results:
        """As `read_results`, but also where every seed has failed."""
        content = read_results(path, finished=False)
        names = {entry.name for entry in fields(cls)}
        return cls(**{name: content[name] for name in names if content.get(name) is not None})

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        content = {"schema": SCHEMA, **asdict(self)}
        if not self.failed:
            del content["failed"]
        # half of a surrogate pair cannot be encoded, but JSON has an escape for it: the same one
        write_atomically(path, readable(content).encode("utf-8", "backslashreplace"))

    def add(self, entry: dict[str, Any], methods: Sequence[str]) -> None:
        """Add a run, or a failure (it has a reason), in the order of methods and seeds."""
        kept = [one for one in self.failed if _pair(one) != _pair(entry)]
        (kept if "reason" in entry else self.runs).append(entry)
        self.failed = sorted(kept, key=_pair)
        self.runs.sort(key=lambda run: (methods.index(run["method"]), run["seed"]))
        self.summary = summarise(self.runs)


def _pair(entry: dict[str, Any]) -> tuple[str, int]:
    return entry["method"], entry["seed"]


def summarise(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over seeds, one row per method."""
    summary: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        of_method = [run for run in runs if run["method"] == method]
        final = [run["final_accuracy"] for run in of_method]
        std = round(statistics.stdev(final), 4) if len(final) > 1 else 0.0
        row = {"mean": round(statistics.mean(final), 4), "std": std, "n": len(final)}
        for name in ("forgetting", "backward_transfer", "seconds", "stored_numbers"):
            values = [run[name] for run in of_method if run.get(name) is not None]
            if values or name != "stored_numbers":
                row[name] = round(statistics.mean(values), 4) if values else None
        summary[method] = row
    return summary


def measures(accuracy: list[list[float]], sizes: list[int]) -> dict[str, float]:
    """Final accuracy over all test samples, mean forgetting, and backward transfer, in percent.

    `sizes` are the numbers of test samples of the tasks. Forgetting is how far the best accuracy on
    a task, since it was learned, is above the last one: the mean over all but the last task.
    Backward transfer is the last accuracy minus that right after learning the task.

    >>> measures([[90.0, 5.0], [80.0, 70.0]], [1, 1])
    {'final_accuracy': 75.0, 'forgetting': 10.0, 'backward_transfer': -10.0}
    """
    last, old = accuracy[-1], range(len(sizes) - 1)
    final = sum(a * n for a, n in zip(last, sizes)) / sum(sizes)
    forgotten = [max(row[j] for row in accuracy[j:]) - last[j] for j in old]
    moved = [last[j] - accuracy[j][j] for j in old]
    return {
        "final_accuracy": round(final, 4),
        "forgetting": round(sum(forgotten) / max(1, len(old)), 4),
        "backward_transfer": round(sum(moved) / max(1, len(old)), 4),
    }


def readable(content: Any) -> str:
    """JSON with one line per value, but lists of numbers on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    # A line break is never inside a text. Nothing is matched in two ways (++ gives nothing back),
    # or deeply indented content would take minutes.
    numbers = r"\[\n\s*+([-+\d.eE,\s]++)\]"
    return re.sub(numbers, lambda m: f"[{' '.join(m[1].split())}]", text)


# --- reading -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Number:
    """A finite number in a range; None too if it may be undefined."""

    low: float = -1e300
    high: float = 1e300
    kinds: tuple[type, ...] = (int, float)
    optional: bool = False


_PERCENT, _SHARE, _COUNT = _Number(0.0, 100.0), _Number(0.0, 1.0), _Number(0.0)
_SEED, _MAYBE = _Number(-(2.0**64), 2.0**64, (int,)), _Number(optional=True)
# "name?" may be missing or null, "*" stands for any name, and [form] for a list
_ROW: dict[str, Any] = {"mean": _Number()}
_ROW |= dict.fromkeys(("std?", "n?", "forgetting?", "backward_transfer?"), _MAYBE)
_ROW |= dict.fromkeys(("seconds?", "stored_numbers?"), _MAYBE)
_STEPS = {"task?": _COUNT, "step?": [_COUNT], "loss?": [_MAYBE], "validation?": [_MAYBE]}
_RUN: dict[str, Any] = {
    "method": str,
    "seed": _SEED,
    "accuracy": [[_PERCENT]],
    "final_accuracy": _PERCENT,
}
_RUN |= {"seconds": _COUNT, "config?": dict, "machine?": str, "stored_numbers?": _COUNT}
_RUN |= {"forgetting?": _MAYBE, "backward_transfer?": _MAYBE, "similarity?": [[_SHARE]]}
_RUN |= {"quota?": {"*": [_SHARE]}, "spectra?": {"*": [[_SHARE]]}, "history?": [_STEPS]}
_FORM: dict[str, Any] = {
    "scenario": str,
    "preset?": str,
    "command?": str,
    "identity?": {"configs": {"*": dict}},
    "task_names?": [str],
    "deviations?": [str],
    "reference?": {"*": {"mean": _Number(), "std?": _MAYBE, "source?": str}},
    "runs": [_RUN],
    "failed?": [{"method": str, "seed": _SEED, "reason": str, "config": dict}],
    "summary": {"*": _ROW},
    "environment": dict,
}


def read_results(path: Path | str, *, finished: bool = True) -> dict[str, Any]:
    """The checked content of a `results.json`, with at least one run if it is to be `finished`.

    Raises:
        ValueError: a damaged file, or one of another form.
        OSError: the file cannot be read.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
        json.dumps(content, allow_nan=False)  # fails for NaN and infinity anywhere
        return check_results(content, finished=finished)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON ({error.msg} at line {error.lineno}, column {error.colno}). It "
            f"may have been cut short: move it away and run the experiment again."
        ) from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a results file") from None
    except ValueError as error:  # also a UnicodeDecodeError, or numbers too long for Python
        why = _cut(str(error), 300)
        raise ValueError(f"{path} is not a results file of conceptors: {why}") from None


def check_results(results: Any, *, finished: bool = True) -> dict[str, Any]:
    """`results` if it has the form of a results file, else ValueError saying where not."""
    _check_depth(results)
    _check(results, {"schema": _Number(SCHEMA, SCHEMA, (int,))}, "")
    _check(results, _FORM, "")
    runs, failed = results["runs"], results.get("failed") or []
    if not runs and (finished or not failed):
        why = "{method} seed {seed} {reason}".format(**failed[0]) if failed else "no run finished"
        raise ValueError(f"runs is empty: {_cut(why)}")
    rows = runs[0]["accuracy"] if runs else []
    tasks = len(results.get("task_names") or ()) or max(map(len, rows), default=0)
    for k, run in enumerate(runs):
        _check_run(run, f"runs[{k}]", tasks)
        if any(_pair(run) == _pair(earlier) for earlier in runs[:k]):
            raise ValueError(f"runs[{k}] is a second run of a method with seed {run['seed']}")
    methods = {run["method"] for run in runs}
    for name in methods ^ set(results["summary"]):
        raise ValueError(f"summary and runs must have the same methods, got {_shown(name)}")
    checked: dict[str, Any] = results
    return checked


def check_name(name: str, where: str) -> None:
    """ValueError for a name that charts cannot show."""
    if name in _RESERVED:
        raise ValueError(
            f"{where} has the name {name!r}. Charts cannot show it, because JavaScript reserves "
            f"it. Rename it."
        )


def _check_depth(content: Any) -> None:
    """ValueError for content that is nested far deeper than what runs write."""
    layer = [content]
    for _ in range(_DEEPEST):
        layer = [list(part.values()) if isinstance(part, dict) else part for part in layer]
        layer = [item for part in layer if isinstance(part, list) for item in part]
    if layer:
        raise ValueError(f"it is nested more than {_DEEPEST} times")


def _check(value: Any, form: Any, where: str) -> None:
    """ValueError where a value does not have the form."""
    if isinstance(form, _Number):
        _check_number(value, form, where)
        return
    kind: Any = form if isinstance(form, type) else type(form)
    if not isinstance(value, kind):
        words: dict[Any, str] = {dict: "an object", list: "a list", str: "a text"}
        raise ValueError(f"{where or 'the file'} must be {words[kind]}, got {_shown(value)}")
    if isinstance(form, list):
        for k, item in enumerate(value):
            _check(item, form[0], f"{where}[{k}]")
    elif isinstance(form, dict) and "*" in form:
        for name, item in value.items():
            check_name(name, where)
            _check(item, form["*"], f"{where}[{_shown(name)}]")
    elif isinstance(form, dict):
        for name, part in form.items():
            plain = name.removesuffix("?")
            if value.get(plain) is not None or plain == name:
                _check(value.get(plain), part, f"{where}.{plain}".removeprefix("."))


def _check_number(value: Any, form: _Number, where: str) -> None:
    if value is None and form.optional:
        return
    slack = 1e-4 * form.high if form.high <= 100 else 0.0  # single precision rounds
    is_number = isinstance(value, form.kinds) and not isinstance(value, bool)
    if not is_number or not form.low - slack <= value <= form.high + slack:
        what = "a finite number" if float in form.kinds else "a whole number"
        span = f" in [{form.low:g}, {form.high:g}]" if form.high < 1e300 else ""
        raise ValueError(f"{where} must be {what}{span}, got {_shown(value)}")


def _check_run(run: dict[str, Any], where: str, tasks: int) -> None:
    """ValueError for rows that do not belong to this number of tasks."""
    rows = run["accuracy"]
    if not rows or max(map(len, rows)) != tasks or len(rows) not in (1, tasks):
        raise ValueError(f"{where}.accuracy must have a row and a column for each of {tasks} tasks")
    for i, row in enumerate(rows):
        if len(row) < i + 1:
            raise ValueError(f"{where}.accuracy[{i}] must have at least {i + 1} values")
    similarity = run.get("similarity") or []
    if any(len(row) != len(similarity) for row in similarity):
        raise ValueError(f"{where}.similarity must have one row and one column per task")
    if not all(all(spectra) for spectra in (run.get("spectra") or {}).values()):
        raise ValueError(f"{where}.spectra must have values for every task")


def _shown(value: Any) -> str:
    """A value, short enough for a message."""
    return _cut(repr(value))


def _cut(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
