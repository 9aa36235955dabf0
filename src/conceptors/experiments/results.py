"""`results.json`: what a run writes, and what resuming, tuning and the report read."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically
from conceptors.experiments.checks import check_form, check_values, shown
from conceptors.experiments.presets import RENAMED, current_name

SCHEMA = 1


@dataclass(frozen=True)
class Run:
    """A method that learned all tasks with one seed."""

    method: str
    seed: int
    accuracy: list[list[float]]  # percent: one row after each task, one column per task
    final_accuracy: float
    forgetting: float | None  # None: undefined
    backward_transfer: float | None
    seconds: float
    config: dict[str, Any]  # the method's settings
    extras: dict[str, Any] = field(default_factory=dict)  # history, quota, spectra and the like

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Run:
        own: dict[str, Any] = {name: found.get(name) for name in _OWN}
        own["config"] = own["config"] or {}
        return cls(**own, extras={name: found[name] for name in found if name not in own})

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OWN} | self.extras


_OWN = [entry.name for entry in fields(Run) if entry.name != "extras"]


@dataclass(frozen=True)
class Failure:
    """A seed that did not come to the end, and would not with these settings.

    >>> print(Failure("cab", 3, "diverged in task 2 of 10", {}))
    cab seed 3 diverged in task 2 of 10
    """

    method: str
    seed: int
    reason: str
    config: dict[str, Any]  # the method's settings

    def __str__(self) -> str:
        return f"{self.method} seed {self.seed} {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass
class Results:
    """All runs of an experiment, with what is needed to resume and to show them."""

    scenario: str
    title: str | None = None
    preset: str | None = None
    command: str | None = None
    identity: dict[str, Any] | None = None  # what must be the same to resume
    task_names: list[str] = field(default_factory=list)
    deviations: list[str] = field(default_factory=list)
    reference: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    summary: dict[str, dict[str, Any]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, found: Any) -> Results:
        """Checked results, maybe of failures alone; ValueError saying where the form is wrong."""
        checked = check_results(found, finished=False)
        given = {entry.name: checked.get(entry.name) for entry in fields(cls)}
        kept = {name: value for name, value in given.items() if value is not None}
        kept["runs"] = [Run.from_json(run) for run in kept["runs"]]
        kept["failed"] = [Failure(**failure) for failure in kept.get("failed", [])]
        return cls(**kept)

    @classmethod
    def read(cls, path: Path) -> Results:
        """As `read_results`, but also where every seed has failed."""
        return cls.from_json(read_results(path, finished=False))

    def to_json(self) -> dict[str, Any]:
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain["runs"] = [run.to_json() for run in self.runs]
        plain["failed"] = [failure.to_json() for failure in self.failed]
        if not self.failed:
            del plain["failed"]
        return {"schema": SCHEMA, **plain}

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        text = readable(self.to_json())
        # half of a surrogate pair cannot be encoded, but JSON has an escape for it: the same one
        write_atomically(path, text.encode("utf-8", "backslashreplace"))

    def add(self, runs: Iterable[Run], methods: list[str]) -> None:
        """Take runs in, in the order of the methods and seeds, and summarise again."""
        order = {name: i for i, name in enumerate(methods)}
        self.runs = sorted([*self.runs, *runs], key=lambda run: (order[run.method], run.seed))
        self.summary = summarise(self.runs)

    def give_up(self, failures: Iterable[Failure]) -> None:
        """Take failures in, each in place of an older one of the same seed."""
        known = {(one.method, one.seed): one for one in [*self.failed, *failures]}
        for run in self.runs:
            known.pop((run.method, run.seed), None)
        self.failed = [known[pair] for pair in sorted(known)]

    def seeds_of(self, method: str) -> set[int]:
        return {run.seed for run in self.runs if run.method == method}

    def failed_seeds_of(self, method: str) -> set[int]:
        return {failure.seed for failure in self.failed if failure.method == method}


def read_results(path: Path | str, *, finished: bool = True) -> dict[str, Any]:
    """The checked content of a `results.json`, with at least one run if it is to be `finished`.

    Errors: ValueError for a damaged file or one of another kind, OSError where it cannot be read.
    """
    path = Path(path)
    try:
        found = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file in UTF-8: {error.reason}") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not JSON ({error.msg} at line {error.lineno}, column {error.colno}); "
            f"it may have been cut short: move it away and run the experiment again"
        ) from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply to be a results file") from None
    except ValueError as error:
        own = isinstance(error, _ConstantError)
        why = str(error) if own else "it has a number of more digits than Python reads"
        raise ValueError(f"{path} is not a results file of conceptors: {why}") from None
    try:
        return _in_todays_words(check_results(found, finished=finished))
    except ValueError as error:
        raise ValueError(f"{path} is not a results file of conceptors: {error}") from None


class _ConstantError(ValueError):
    pass


def _no_constant(name: str) -> None:
    """Python's JSON knows NaN and Infinity, which no run writes."""
    raise _ConstantError(f"{name} is not a number of JSON; what is undefined is null")


def check_results(results: Any, *, finished: bool = True) -> dict[str, Any]:
    """`results` itself if it has the form of a results file, else ValueError saying where not."""
    check_values(results)
    if not isinstance(results, dict):
        raise ValueError(f"the file must be an object, got {shown(results)}")
    found = results.get("schema")
    if type(found) is not int or found != SCHEMA:
        newer = isinstance(found, int) and found > SCHEMA
        raise ValueError(
            f"schema is {shown(found) if 'schema' in results else 'missing'}; this version "
            f"reads schema {SCHEMA}{': a newer conceptors wrote it, upgrade' if newer else ''}"
        )
    check_form(results, finished=finished)
    return results


def _in_todays_words(found: dict[str, Any]) -> dict[str, Any]:
    """Results as they would be written today: an earlier version had "report" for the paper."""
    for part in (found, found.get("identity") or {}):
        if part.get("preset"):
            part["preset"] = current_name(part["preset"])
    if found.get("command"):
        old = re.compile(rf"(--preset[ =])({'|'.join(RENAMED)})\b")
        found["command"] = old.sub(lambda m: m[1] + RENAMED[m[2]], found["command"])
    for entry in (found.get("reference") or {}).values():
        if "source" in entry:
            entry["source"] = current_name(entry["source"])
    return found


def readable(content: Any) -> str:
    """JSON with a line a value, but lists of numbers on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    # A line break is never inside a text. Nothing is matched in two ways (++ gives nothing back),
    # or deeply indented content would take minutes.
    numbers = r"\[\n\s*+([-+\d.eE,\s]++)\]"
    return re.sub(numbers, lambda m: f"[{' '.join(m[1].split())}]", text)


# --- numbers -----------------------------------------------------------------------------


def measures(accuracy: list[list[float]], sizes: list[int] | None = None) -> dict[str, float]:
    """Final accuracy over all test samples, mean forgetting, and backward transfer, in percent.

    `sizes` are the numbers of test samples of the tasks (equal if not given).

    Forgetting: how far the best accuracy a task ever had, after it was learned, is above the last
    one, mean over all but the last task. Backward transfer: last accuracy minus that right after
    learning the task.

    >>> measures([[90.0, 5.0], [80.0, 70.0]])
    {'final_accuracy': 75.0, 'forgetting': 10.0, 'backward_transfer': -10.0}
    """
    last = accuracy[-1]
    count = len(last)
    sizes = sizes or [1] * count
    final = sum(a * n for a, n in zip(last, sizes)) / sum(sizes)
    old = range(count - 1)
    best = [max(accuracy[i][j] for i in range(j, count)) - last[j] for j in old]
    moved = [last[j] - accuracy[j][j] for j in old]
    return {
        "final_accuracy": round(final, 4),
        "forgetting": round(sum(best) / max(1, count - 1), 4),
        "backward_transfer": round(sum(moved) / max(1, count - 1), 4),
    }


def summarise(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over seeds, one row per method."""
    summary: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(run.method for run in runs):
        own = [run for run in runs if run.method == method]
        final = [run.final_accuracy for run in own]
        summary[method] = {
            "mean": round(statistics.mean(final), 4),
            "std": round(statistics.stdev(final), 4) if len(final) > 1 else 0.0,
            "n": len(final),
            "forgetting": _mean([run.forgetting for run in own]),
            "backward_transfer": _mean([run.backward_transfer for run in own]),
            "seconds": round(statistics.mean(run.seconds for run in own), 3),
        }
        if all(isinstance(run.extras.get("stored_numbers"), int) for run in own):
            stored = statistics.mean(run.extras["stored_numbers"] for run in own)
            summary[method]["stored_numbers"] = round(stored)
    return summary


def _mean(values: list[float | None]) -> float | None:
    """None where no value is defined."""
    known = [value for value in values if value is not None]
    return round(statistics.mean(known), 4) if known else None
