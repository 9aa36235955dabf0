"""The summary table: one row per method, with the best values and published results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from conceptors.report import data
from conceptors.report.text import MISSING, spread
from conceptors.report.theme import method_looks

_DIGITS = {"mean": 2, "forgetting": 2, "backward_transfer": 2, "seconds": 2, "stored_numbers": 0}
_HIGHEST = {"mean": True, "forgetting": False, "backward_transfer": True}  # which is best


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
    names, entries = data.methods(results), results["summary"]
    best = {key: _best(entries, key) for key in _DIGITS}
    rows = []
    for method, look in zip(names, method_looks(names)):
        seeds = sum(run["method"] == method for run in results["runs"])
        deviations = {"mean": entries[method].get("std") if seeds > 1 else None}
        cells = {
            key: _cell(entries[method].get(key), deviations.get(key), digits, method in best[key])
            for key, digits in _DIGITS.items()
        }
        published = (results.get("reference") or {}).get(method, {})
        note = str(published.get("source") or "")
        cells["published"] = _cell(published.get("mean"), published.get("std"), note=note)
        cells["seeds"] = Cell(str(seeds), seeds)
        rows.append(Row(method, look.colour, method in data.CEILINGS, cells))
    return sorted(rows, key=lambda row: -(row.cells["mean"].value or 0.0))


def _cell(
    value: float | None, sd: float | None, digits: int = 2, best: bool = False, note: str = ""
) -> Cell:
    if value is None or not math.isfinite(value):
        return Cell()
    return Cell(spread(value, sd, digits), value, best, note)


def _best(entries: dict[str, dict[str, Any]], key: str) -> set[str]:
    """Return the methods with the best printed value; none if all are equal."""
    values = {
        method: round(entry[key], 2)
        for method, entry in entries.items()
        if key in _HIGHEST and method not in data.CEILINGS and entry.get(key) is not None
    }
    top = (max if _HIGHEST.get(key) else min)(values.values(), default=None)
    return {m for m, value in values.items() if value == top and len(set(values.values())) > 1}
