"""The form of `results.json`: every part is checked, so that nobody after that has to.

An error says where in the file the first wrong thing is (`runs[2].accuracy[0][1]`) and what was
expected there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

_DEEPEST = 50  # what runs write is nested a few times
_LARGEST_SEED = 2**64 - 1
_RESERVED = {  # properties of every object in JavaScript, where charts look names up
    *("constructor", "hasOwnProperty", "isPrototypeOf", "propertyIsEnumerable", "toLocaleString"),
    *("toString", "valueOf", "__proto__", "__defineGetter__", "__defineSetter__"),
    *("__lookupGetter__", "__lookupSetter__"),
}


def check_values(content: Any) -> None:
    """ValueError for content that is nested too deeply, or has numbers too large for a float.

    Comes before everything else: what passes can be shown in a message and written again.
    """
    left: list[tuple[Any, tuple[Any, ...], int]] = [(content, (), 0)]
    while left:
        owner, trail, depth = left.pop()
        if isinstance(owner, dict):
            parts: Iterator[tuple[Any, Any]] = iter(owner.items())
        elif isinstance(owner, list):
            parts = enumerate(owner)
        else:
            continue
        if depth == _DEEPEST:
            raise ValueError(f"{_place(trail)} is nested more than {_DEEPEST} times")
        for key, value in parts:
            if isinstance(value, (dict, list)):
                left.append((value, (*trail, key), depth + 1))
            elif isinstance(value, (int, float)) and _too_large(value):
                raise ValueError(
                    f"{_place((*trail, key))} must be a finite number, got {shown(value)}"
                )


def _place(trail: tuple[Any, ...]) -> str:
    """`runs[2].accuracy[0][1]`, from the keys that lead there."""
    words = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in trail)
    return cut(words.removeprefix("."))


def _too_large(value: float) -> bool:
    """Infinite, or a whole number beyond all floats."""
    try:
        return math.isinf(value)
    except OverflowError:
        return True


def check_form(results: dict[str, Any], *, finished: bool = True) -> None:
    """ValueError saying where `results` do not have the form of a results file.

    With `finished` they must have a run; without, failures will do.
    """
    _kind(_part(results, "scenario", ""), str, "scenario")
    for name in ("title", "command", "preset"):
        if results.get(name) is not None:
            _kind(results[name], str, name)
    runs = _kind(_part(results, "runs", ""), list, "runs")
    failed = _check_failed(results.get("failed"))
    if not runs and (finished or not failed):
        why = f"{' '.join(failed[0])}" if failed else "no run has finished yet"
        raise ValueError(f"runs is empty: {why}")
    names = results.get("task_names")
    tasks = len(_texts(names, "task_names")) if names is not None else 0
    pairs: set[tuple[str, int]] = set()
    for k, run in enumerate(runs):
        where = f"runs[{k}]"
        found_tasks = _check_run(run, where)
        tasks = tasks or found_tasks  # without names, the first run decides
        if found_tasks != tasks:
            raise ValueError(
                f"{where}.accuracy is of {found_tasks} tasks where "
                f"{'task_names' if names else 'runs[0]'} has {tasks}"
            )
        pair = (run["method"], run["seed"])
        if pair in pairs:
            raise ValueError(f"{where} is a second run of {cut(pair[0])!r} with seed {pair[1]}")
        pairs.add(pair)
    _check_summary(results, {method for method, _ in pairs})
    _kind(_part(results, "environment", ""), dict, "environment")
    if results.get("deviations") is not None:
        _texts(results["deviations"], "deviations")
    for method, entry in _entries(results.get("reference"), "reference"):
        where = f"reference[{cut(method)!r}]"
        _number(_part(entry, "mean", where), f"{where}.mean")
        _number(entry.get("std"), f"{where}.std", optional=True)
        _kind(entry.get("source", ""), str, f"{where}.source")
    _check_identity(results.get("identity"), {method for method, _ in pairs})


def _check_failed(given: Any) -> list[tuple[str, str, str]]:
    """Method, seed and reason of every seed that failed."""
    found = []
    for k, failure in enumerate(_kind([] if given is None else given, list, "failed")):
        where = f"failed[{k}]"
        if set(_kind(failure, dict, where)) != {"method", "seed", "reason", "config"}:
            raise ValueError(
                f"{where} must have method, seed, reason and config, got {shown(list(failure))}"
            )
        _check_seed(failure["seed"], f"{where}.seed")
        for name in ("method", "reason"):
            _kind(failure[name], str, f"{where}.{name}")
        _kind(failure["config"], dict, f"{where}.config")
        found.append((cut(failure["method"]), f"seed {failure['seed']}", cut(failure["reason"])))
    return found


def _check_identity(identity: Any, methods: set[str]) -> None:
    """Where there is one, settings of every method that ran."""
    if identity is None:
        return
    configs = _part(_kind(identity, dict, "identity"), "configs", "identity")
    for _ in _entries(configs, "identity.configs"):
        pass
    for method in methods - set(configs):
        raise ValueError(f"identity.configs lacks the method {cut(method)!r}, which has runs")


def _check_summary(results: dict[str, Any], methods: set[str]) -> None:
    """A row for every method that ran, and for no other."""
    summary = _kind(_part(results, "summary", ""), dict, "summary")
    for method, entry in _entries(summary, "summary"):
        where = f"summary[{cut(method)!r}]"
        if method not in methods:
            raise ValueError(f"{where} has no run")
        _number(_part(entry, "mean", where), f"{where}.mean")
        for name in ("std", "n", "seconds", "stored_numbers"):
            _number(entry.get(name), f"{where}.{name}", optional=True)
        for name in ("forgetting", "backward_transfer"):  # undefined for a single task
            _number(entry.get(name), f"{where}.{name}", optional=True, finite=False)
    for method in methods - set(summary):
        raise ValueError(f"summary lacks the method {cut(method)!r}, which has runs")


def _check_run(run: Any, where: str) -> int:
    """One run; returns how many tasks it is of."""
    _kind(run, dict, where)
    _kind(_part(run, "method", where), str, f"{where}.method")
    _check_seed(_part(run, "seed", where), f"{where}.seed")
    found = _check_accuracy(_part(run, "accuracy", where), f"{where}.accuracy")
    _number(_part(run, "final_accuracy", where), f"{where}.final_accuracy", 0.0, 100.0)
    _number(_part(run, "seconds", where), f"{where}.seconds", 0.0)
    _number(run.get("together"), f"{where}.together", 0.0, optional=True)
    _kind(run.get("machine") or "", str, f"{where}.machine")
    _kind(run.get("shared") or False, bool, f"{where}.shared")
    for name in ("forgetting", "backward_transfer"):
        _number(run.get(name), f"{where}.{name}", optional=True, finite=False)
    _kind(run.get("config") or {}, dict, f"{where}.config")
    _check_layers(run, where)
    if run.get("similarity") is not None:
        rows = _rows(run["similarity"], f"{where}.similarity", 0.0, 1.0)
        if any(len(row) != len(rows) for row in rows):
            raise ValueError(f"{where}.similarity must be square, one row and one column per task")
    return found


def _check_seed(seed: Any, where: str) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or abs(seed) > _LARGEST_SEED:
        raise ValueError(f"{where} must be a whole number of at most 64 bits, got {shown(seed)}")


def _check_accuracy(given: Any, where: str) -> int:
    """Rows of percents: one after each task, or a single one after all of them together."""
    rows = _rows(given, where, 0.0, 100.0)
    found = max(len(row) for row in rows)
    if len(rows) not in (1, found):
        raise ValueError(
            f"{where} has {len(rows)} rows of up to {found} columns; expected {found} rows, "
            f"one after each task"
        )
    for i, row in enumerate(rows):
        if len(row) < i + 1:
            raise ValueError(
                f"{where}[{i}] has {len(row)} values; after {i + 1} tasks at least {i + 1} are "
                f"needed"
            )
    return found


def _check_layers(run: dict[str, Any], where: str) -> None:
    """Quotas: one number per task; spectra: one list per task."""
    for layer, values in _layers(run.get("quota"), f"{where}.quota"):
        at = f"{where}.quota[{cut(layer)!r}]"
        for k, value in enumerate(_kind(values, list, at)):
            _number(value, f"{at}[{k}]", 0.0, 1.0)
    for layer, values in _layers(run.get("spectra"), f"{where}.spectra"):
        _rows(values, f"{where}.spectra[{cut(layer)!r}]", 0.0, 1.0)


def _rows(given: Any, where: str, low: float, high: float) -> list[list[float]]:
    """Lists of numbers, none of them empty."""
    rows: list[list[float]] = _kind(given, list, where)
    if not rows:
        raise ValueError(f"{where} is empty")
    for i, row in enumerate(rows):
        if not _kind(row, list, f"{where}[{i}]"):
            raise ValueError(f"{where}[{i}] is empty")
        for j, value in enumerate(row):
            _number(value, f"{where}[{i}][{j}]", low, high)
    return rows


def _layers(given: Any, where: str) -> Iterator[tuple[str, Any]]:
    for name, value in _kind({} if given is None else given, dict, where).items():
        check_name(name, where)
        yield name, value


def check_name(name: str, where: str) -> None:
    """ValueError for a name that charts cannot show."""
    if name in _RESERVED:
        raise ValueError(
            f"{where} has the name {name!r}. Charts cannot show it, because JavaScript reserves "
            f"it. Rename it."
        )


def _entries(given: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, entry in _layers(given, where):
        yield name, _kind(entry, dict, f"{where}[{cut(name)!r}]")


def _texts(given: Any, where: str) -> list[str]:
    for k, text in enumerate(_kind(given, list, where)):
        _kind(text, str, f"{where}[{k}]")
    return list(given)


def _part(owner: dict[str, Any], name: str, where: str) -> Any:
    if name not in owner:
        raise ValueError(f"{where + '.' if where else ''}{name} is missing")
    return owner[name]


_WORDS: dict[Any, str] = {dict: "an object", list: "a list", str: "a text"}


def _kind(value: Any, kind: type[Any], where: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where} must be {_WORDS[kind]}, got {shown(value)}")
    return value


def _number(
    value: Any,
    where: str,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    optional: bool = False,
    finite: bool = True,
) -> None:
    if optional and value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError(f"{where} must be a number, got {shown(value)}")
    if not finite:
        return
    slack = 1e-4 * high if math.isfinite(high) else 0.0  # rounding in single precision
    if not math.isfinite(value) or not low - slack <= value <= high + slack:
        span = f" in [{low:g}, {high:g}]" if high < math.inf else ""
        raise ValueError(f"{where} must be a finite number{span}, got {shown(value)}")


def shown(value: Any) -> str:
    """A value, short enough for a message."""
    return cut(repr(value))


def cut(text: str) -> str:
    """Short enough for a message."""
    return text if len(text) <= 60 else text[:57] + "..."
