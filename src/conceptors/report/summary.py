"""The summary table: one row per method, with the best values and published results."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from conceptors.report import data
from conceptors.report.text import MISSING, spread
from conceptors.report.theme import method_looks


@dataclass(frozen=True)
class Cell:
    """A text and the value to sort by (None sorts last)."""

    text: str = MISSING
    value: float | None = None
    best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A method, its colour in the charts, and its cells by column."""

    method: str
    colour: str
    ceiling: bool
    cells: dict[str, Cell]


def summary(results: dict[str, Any]) -> list[Row]:
    """Return one row per method that ran, in descending order of accuracy."""
    names, entries, rows = data.methods(results), results["summary"], []
    most, least = _best(entries, "mean", max), _best(entries, "forgetting", min)
    for method, look in zip(names, method_looks(names)):
        entry, seeds = entries[method], sum(run["method"] == method for run in results["runs"])
        published = (results.get("reference") or {}).get(method, {})
        note = str(published.get("source") or "")
        cells = {
            "mean": _cell(entry["mean"], entry.get("std") if seeds > 1 else None, method in most),
            "published": _cell(published.get("mean"), published.get("std"), note=note),
            "forgetting": _cell(entry.get("forgetting"), best=method in least),
            "seconds": _cell(entry.get("seconds")),
            "seeds": Cell(str(seeds), seeds),
        }
        rows.append(Row(method, look.colour, method in data.CEILINGS, cells))
    return sorted(rows, key=lambda row: -(row.cells["mean"].value or 0.0))


def _cell(value: float | None, sd: float | None = None, best: bool = False, note: str = "") -> Cell:
    return Cell() if value is None else Cell(spread(value, sd), value, best, note)


def _best(entries: dict[str, dict[str, Any]], key: str, choose: Callable[..., float]) -> set[str]:
    """Return the methods with the best printed value; none if all are equal."""
    values = {
        method: round(entry[key], 2)
        for method, entry in entries.items()
        if method not in data.CEILINGS and entry.get(key) is not None
    }
    if len(set(values.values())) < 2:
        return set()
    return {method for method, value in values.items() if value == choose(values.values())}
