"""`results.json`: what a run writes, and what resuming and the report read.

A file that is damaged, or that something else wrote, ends in a ValueError that names the file and
the first wrong place in it (`runs[2].accuracy[0][1]`).
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically

SCHEMA = 1
_DEEPEST = 50  # what runs write is nested a few times
_RESERVED = {  # properties of every object in JavaScript, where charts look names up
    *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString"),
    *("toString", "valueOf", "__proto__", "__defineGetter__", "__defineSetter__"),
    *("__lookupGetter__", "__lookupSetter__"),
}


@dataclass(frozen=True)
class _Number:
    """A finite number in a range, None too if it may be undefined."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False
    optional: bool = False


_PERCENT, _SHARE, _MAYBE = _Number(0.0, 100.0), _Number(0.0, 1.0), _Number(optional=True)
_SEED = _Number(-(2.0**64), 2.0**64, whole=True)
# The form of the file: "name?" may be missing or null, "*" is any name, [form] is a list.
_RUN: dict[str, Any] = {
    "method": str,
    "seed": _SEED,
    "accuracy": [[_PERCENT]],
    "final_accuracy": _PERCENT,
    "seconds": _Number(0.0),
    "config?": dict,
    "forgetting?": _MAYBE,
    "backward_transfer?": _MAYBE,
    "machine?": str,
    "quota?": {"*": [_SHARE]},
    "spectra?": {"*": [[_SHARE]]},
    "similarity?": [[_SHARE]],
    "history?": [
        {"task?": _Number(0.0), "step?": [_Number(0.0)], "loss?": [_MAYBE], "validation?": [_MAYBE]}
    ],
}
_ENTRY = {"mean": _Number(), "std?": _MAYBE}
_FORM: dict[str, Any] = {
    "scenario": str,
    "preset?": str,
    "command?": str,
    "identity?": {"configs": {"*": dict}},
    "task_names?": [str],
    "deviations?": [str],
    "reference?": {"*": {**_ENTRY, "source?": str}},
    "runs": [_RUN],
    "failed?": [{"method": str, "seed": _SEED, "reason": str, "config": dict}],
    "summary": {
        "*": {
            **_ENTRY,
            "n?": _MAYBE,
            "forgetting?": _MAYBE,
            "backward_transfer?": _MAYBE,
            "seconds?": _MAYBE,
            "stored_numbers?": _MAYBE,
        }
    },
    "environment": dict,
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
    identity: dict[str, Any] | None = None  # what must be the same to resume
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

    def add_run(self, run: dict[str, Any], methods: Iterable[str]) -> None:
        """Add a finished run, in the order of the methods and seeds, and summarise again."""
        order = list(methods)
        self.runs.append(run)
        self.runs.sort(key=lambda run: (order.index(run["method"]), run["seed"]))
        pair = run["method"], run["seed"]
        self.failed = [one for one in self.failed if (one["method"], one["seed"]) != pair]
        self.summary = summarise(self.runs)

    def add_failure(self, failure: dict[str, Any]) -> None:
        """Add a failure, in place of an older one of the same seed."""
        pair = failure["method"], failure["seed"]
        others = [one for one in self.failed if (one["method"], one["seed"]) != pair]
        self.failed = sorted([*others, failure], key=lambda one: (one["method"], one["seed"]))


# --- reading -----------------------------------------------------------------------------


def read_results(path: Path | str, *, finished: bool = True) -> dict[str, Any]:
    """The checked content of a `results.json`, with at least one run if it is to be `finished`.

    Raises:
        ValueError: a damaged file, or one of another form.
        OSError: the file cannot be read.
    """
    path = Path(path)
    try:
        return check_results(json.loads(path.read_bytes().decode("utf-8")), finished=finished)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON ({error.msg} at line {error.lineno}, column {error.colno}). It "
            f"may have been cut short: move it away and run the experiment again."
        ) from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a results file") from None
    except ValueError as error:  # also a UnicodeDecodeError, or numbers too long for Python
        why = str(error)[:500]
        raise ValueError(f"{path} is not a results file of conceptors: {why}") from None


def check_results(results: Any, *, finished: bool = True) -> dict[str, Any]:
    """`results` if it has the form of a results file, else ValueError saying where not."""
    _check_values(results)
    schema = results.get("schema") if isinstance(results, dict) else None
    if type(schema) is not int or schema != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        hint = ": a newer conceptors wrote it, upgrade" if newer else ""
        raise ValueError(f"schema is {_shown(schema)}; this version reads schema {SCHEMA}{hint}")
    _check(results, _FORM, "")
    runs, names = results["runs"], results.get("task_names")
    if not runs and (finished or not results.get("failed")):
        reasons = [
            f"{f['method']} seed {f['seed']} {f['reason']}" for f in results.get("failed") or []
        ]
        raise ValueError(f"runs is empty: {_cut((reasons or ['no run has finished yet'])[0])}")
    pairs = set()
    count = len(names or ()) or max(map(len, runs[0]["accuracy"] if runs else [[]]), default=0)
    for k, run in enumerate(runs):
        _check_run(run, f"runs[{k}]", count)
        if (pair := (run["method"], run["seed"])) in pairs:
            raise ValueError(f"runs[{k}] is a second run of {_shown(pair[0])} with seed {pair[1]}")
        pairs.add(pair)
    methods = {method for method, _ in pairs}
    if differing := methods ^ set(results["summary"]):
        name = _shown(sorted(differing)[0])
        raise ValueError(f"summary must have exactly the methods of the runs; {name} differs")
    if results.get("identity") and (missing := methods - set(results["identity"]["configs"])):
        raise ValueError(f"identity.configs lacks {_shown(sorted(missing)[0])}, which has runs")
    checked: dict[str, Any] = results
    return checked


def check_name(name: str, where: str) -> None:
    """ValueError for a name that charts cannot show."""
    if name in _RESERVED:
        raise ValueError(
            f"{where} has the name {name!r}. Charts cannot show it, because JavaScript reserves "
            f"it. Rename it."
        )


def _check_values(content: Any) -> None:
    """ValueError for content that is nested too deeply, or has numbers that are not finite.

    Comes before everything else: what passes can be shown in a message and written again.
    """
    left = [(content, "", 0)]
    while left:
        owner, where, depth = left.pop()
        if depth > _DEEPEST:
            raise ValueError(f"{_cut(where)} is nested more than {_DEEPEST} times")
        items = owner.items() if isinstance(owner, dict) else enumerate(owner)
        for key, value in items if isinstance(owner, (dict, list)) else ():
            if isinstance(value, (dict, list)):
                place = f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key}"
                left.append((value, place.removeprefix("."), depth + 1))
            elif isinstance(value, (int, float)) and not _is_finite(value):
                raise ValueError(
                    f"{_cut(where)}[{_cut(str(key))}] must be a finite number, got {_shown(value)}"
                )


def _check(value: Any, form: Any, where: str) -> None:
    """ValueError where a value has not the form."""
    if isinstance(form, _Number):
        _check_number(value, form, where)
        return
    kind = form if isinstance(form, type) else type(form)
    if not isinstance(value, kind):
        words = {dict: "an object", list: "a list", str: "a text"}
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
            if plain != name and value.get(plain) is None:
                continue
            place = f"{where}.{plain}".removeprefix(".")
            if plain not in value:
                raise ValueError(f"{place} is missing")
            _check(value[plain], part, place)


def _check_number(value: Any, form: _Number, where: str) -> None:
    if value is None and form.optional:
        return
    kinds = int if form.whole else (int, float)
    slack = 1e-4 * form.high if math.isfinite(form.high) else 0.0  # single precision rounds
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not form.low - slack <= value <= form.high + slack:
        what = "a whole number" if form.whole else "a number"
        span = f" in [{form.low:g}, {form.high:g}]" if form.high < math.inf else ""
        raise ValueError(f"{where} must be {what}{span}, got {_shown(value)}")


def _check_run(run: dict[str, Any], where: str, tasks: int) -> None:
    """ValueError for rows that do not belong to this number of tasks."""
    accuracy = run["accuracy"]
    if not accuracy or max(map(len, accuracy)) != tasks or len(accuracy) not in (1, tasks):
        raise ValueError(
            f"{where}.accuracy must have {tasks} columns and one row after each of the {tasks} "
            f"tasks, or a single row"
        )
    for i, row in enumerate(accuracy):
        if len(row) < i + 1:
            raise ValueError(
                f"{where}.accuracy[{i}] has {len(row)} values, at least {i + 1} are needed"
            )
    similarity = run.get("similarity") or []
    if any(len(row) != len(similarity) for row in similarity):
        raise ValueError(f"{where}.similarity must be square, one row and one column per task")
    for layer, rows in (run.get("spectra") or {}).items():
        if not all(rows):
            raise ValueError(f"{where}.spectra[{_shown(layer)}] has an empty row")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _shown(value: Any) -> str:
    """A value, short enough for a message."""
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


# --- writing and numbers -----------------------------------------------------------------


def readable(content: Any) -> str:
    """JSON with one line per value, but lists of numbers on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    # A line break is never inside a text. Nothing is matched in two ways (++ gives nothing back),
    # or deeply indented content would take minutes.
    numbers = r"\[\n\s*+([-+\d.eE,\s]++)\]"
    return re.sub(numbers, lambda m: f"[{' '.join(m[1].split())}]", text)


def measures(accuracy: list[list[float]], sizes: list[int] | None = None) -> dict[str, float]:
    """Final accuracy over all test samples, mean forgetting, and backward transfer, in percent.

    `sizes` are the numbers of test samples of the tasks (equal if not given). Forgetting is how far
    the best accuracy on a task, since it was learned, is above the last one: the mean over all but
    the last task. Backward transfer is the last accuracy minus that right after learning the task.

    >>> measures([[90.0, 5.0], [80.0, 70.0]])
    {'final_accuracy': 75.0, 'forgetting': 10.0, 'backward_transfer': -10.0}
    """
    last, count = accuracy[-1], len(accuracy[-1])
    sizes = sizes or [1] * count
    final = sum(a * n for a, n in zip(last, sizes)) / sum(sizes)
    old = range(count - 1)
    forgotten = [max(accuracy[i][j] for i in range(j, count)) - last[j] for j in old]
    moved = [last[j] - accuracy[j][j] for j in old]
    return {
        "final_accuracy": round(final, 4),
        "forgetting": round(sum(forgotten) / max(1, count - 1), 4),
        "backward_transfer": round(sum(moved) / max(1, count - 1), 4),
    }


def summarise(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over seeds, one row per method."""
    summary: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(run["method"] for run in runs):
        of_method = [run for run in runs if run["method"] == method]
        final = [run["final_accuracy"] for run in of_method]
        row = {
            "mean": round(statistics.mean(final), 4),
            "std": round(statistics.stdev(final), 4) if len(final) > 1 else 0.0,
            "n": len(final),
        }
        for name in ("forgetting", "backward_transfer", "seconds", "stored_numbers"):
            values = [run[name] for run in of_method if run.get(name) is not None]
            row[name] = round(statistics.mean(values), 4) if values else None
        if row["stored_numbers"] is None:
            del row["stored_numbers"]
        summary[method] = row
    return summary
