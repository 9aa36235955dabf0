"""The summary table: one row per method, the best in bold, published values beside ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from conceptors.report import measures
from conceptors.report.measures import CEILINGS
from conceptors.report.text import MISSING, duration, number, spread
from conceptors.report.theme import method_looks


@dataclass(frozen=True)
class Cell:
    """What is shown, and the value to sort by (None: last)."""

    text: str
    value: float | None = None
    best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    """A method; `origin` says of which results where there are several."""

    method: str
    colour: str | None  # the name of its colour in the charts
    ceiling: bool
    accuracy: Cell
    reference: Cell
    seeds: Cell
    forgetting: Cell
    transfer: Cell
    seconds: Cell
    stored: Cell
    origin: str = ""


@dataclass(frozen=True)
class Summary:
    """All rows, and what there is to explain below them."""

    rows: list[Row]
    has_reference: bool
    has_ceiling: bool
    has_spread: bool
    has_stored: bool
    has_readout: bool


def summary(found: dict[str, dict[str, Any]]) -> Summary:
    """All rows of one or several results, highest accuracy first; what was not run comes last."""
    rows = [row for origin, results in found.items() for row in _rows(results, origin)]
    rows.sort(key=lambda row: -1.0 if row.accuracy.value is None else row.accuracy.value)
    rows = [row for row in rows[::-1] if row.colour] + [row for row in rows if not row.colour]
    return Summary(
        rows,
        any(results.get("reference") for results in found.values()),
        any(row.ceiling for row in rows) and len(rows) > 1,
        any("±" in row.accuracy.text for row in rows),
        any(row.stored.value is not None for row in rows),
        any(row.method == "readout" and row.colour for row in rows),
    )


def _rows(results: dict[str, Any], origin: str) -> list[Row]:
    given: dict[str, dict[str, Any]] = results["summary"]
    reference: dict[str, dict[str, Any]] = results.get("reference") or {}
    names = measures.methods(results)
    best = {
        part: _best([(m, given[m].get(part)) for m in names], highest)
        for part, highest in (("mean", True), ("forgetting", False), ("backward_transfer", True))
    }
    none = Cell(MISSING)
    rows = []
    for m, look in zip(names, method_looks(names)):
        entry = given[m]
        runs = measures.runs_of(results, m)
        n = entry.get("n") or len(runs)
        seconds = None if any(run.get("shared") for run in runs) else entry.get("seconds")
        rows.append(
            Row(
                method=m,
                colour=look.colour,
                ceiling=m in CEILINGS,
                accuracy=Cell(spread(entry["mean"], _sd(entry)), entry["mean"], m in best["mean"]),
                reference=_reference(reference.get(m)),
                seeds=Cell(f"{n:g}", float(n)),
                forgetting=_plain(entry.get("forgetting"), m in best["forgetting"]),
                transfer=_plain(
                    entry.get("backward_transfer"), m in best["backward_transfer"], signed=True
                ),
                seconds=Cell(duration(seconds), seconds),
                stored=_whole(entry.get("stored_numbers")),
                origin=origin,
            )
        )
    return rows + [
        Row(
            m, None, False, Cell("not run"), _reference(entry), none, none, none, none, none, origin
        )
        for m, entry in reference.items()
        if m not in names
    ]


def _plain(value: float | None, best: bool, *, signed: bool = False) -> Cell:
    known = value is not None and math.isfinite(value)
    return Cell(number(value, signed=signed), value if known else None, best and known)


def _whole(value: float | None) -> Cell:
    return Cell(MISSING) if value is None else Cell(f"{value:,.0f}", value)


def _reference(entry: dict[str, Any] | None) -> Cell:
    if entry is None:
        return Cell(MISSING)
    source = entry.get("source") or ""
    note = "the paper" if source == "paper" else source
    return Cell(spread(entry["mean"], entry.get("std")), entry["mean"], note=note)


def _best(values: list[tuple[str, float | None]], highest: bool) -> set[str]:
    """Who has the best value as printed; nobody where there is nobody to compare with."""
    known = {
        m: round(v, 2) + 0.0
        for m, v in values
        if v is not None and math.isfinite(v) and m not in CEILINGS
    }
    if len(known) < 2 or len(set(known.values())) == 1:
        return set()
    top = max(known.values()) if highest else min(known.values())
    return {m for m, v in known.items() if v == top}


def _sd(entry: dict[str, Any]) -> float | None:
    """The standard deviation, where more than one seed gives it a meaning."""
    sd: float | None = entry.get("std")
    return None if sd is None or entry.get("n") == 1 else sd
