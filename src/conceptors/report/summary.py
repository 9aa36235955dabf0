"""The summary table: a row a method, the best in bold, the report's values beside ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from conceptors.report import measures
from conceptors.report.measures import CEILINGS
from conceptors.report.scale import percent_ticks
from conceptors.report.styles import Style, method_styles
from conceptors.report.svg import chart, marker, path, sample, tag
from conceptors.report.text import MISSING, clean, duration, number, spread


@dataclass(frozen=True)
class Cell:
    """What is shown, and the value to sort by (None: last)."""

    text: str
    value: float | None = None
    best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Row:
    method: str
    sample: Markup | None
    ceiling: bool
    accuracy: Cell
    dots: Markup | None
    reference: Cell
    seeds: Cell
    forgetting: Cell
    transfer: Cell
    seconds: Cell


@dataclass(frozen=True)
class Summary:
    rows: list[Row]
    dots_from: str
    dots_to: str
    has_reference: bool
    has_ceiling: bool
    has_spread: bool


def summary(results: dict[str, Any]) -> Summary:
    """All rows, highest accuracy first; methods that only the report has come last."""
    given: dict[str, dict[str, Any]] = results["summary"]
    reference: dict[str, dict[str, Any]] = results.get("reference") or {}
    styles = method_styles(measures.methods(results))
    order = sorted(styles, key=lambda m: -given[m]["mean"])
    span = _span(results)
    best = {
        name: _best([(m, given[m].get(name)) for m in order], highest)
        for name, highest in (("mean", True), ("forgetting", False), ("backward_transfer", True))
    }
    rows = [_row(results, m, styles[m], span, best) for m in order]
    rows += [_reference_only(m, reference[m], span) for m in reference if m not in styles]
    return Summary(
        rows,
        f"{span[0]:g}",
        f"{span[1]:g}",
        bool(reference),
        any(row.ceiling for row in rows) and len(order) > 1,
        any(_sd(given[m]) is not None for m in order),
    )


def _row(
    results: dict[str, Any],
    method: str,
    style: Style,
    span: tuple[float, float],
    best: dict[str, set[str]],
) -> Row:
    entry = results["summary"][method]
    reference = (results.get("reference") or {}).get(method)
    n = entry.get("n") or len(measures.runs_of(results, method))
    return Row(
        method=method,
        sample=sample(style, f"var(--s{style.colour})"),
        ceiling=method in CEILINGS,
        accuracy=Cell(spread(entry["mean"], _sd(entry)), entry["mean"], method in best["mean"]),
        dots=_dots(results, method, style, span, reference),
        reference=_reference(reference),
        seeds=Cell(f"{n:g}", float(n)),
        forgetting=_plain(entry.get("forgetting"), method in best["forgetting"]),
        transfer=_plain(
            entry.get("backward_transfer"), method in best["backward_transfer"], signed=True
        ),
        seconds=Cell(duration(entry.get("seconds")), entry.get("seconds")),
    )


def _reference_only(method: str, reference: dict[str, Any], span: tuple[float, float]) -> Row:
    none = Cell(MISSING)
    dots = _strip([_diamond(reference, span)], f"{clean(method)}: only the report's value")
    return Row(
        method, None, False, Cell("not run"), dots, _reference(reference), none, none, none, none
    )


def _plain(value: float | None, best: bool, *, signed: bool = False) -> Cell:
    known = value is not None and math.isfinite(value)
    return Cell(number(value, signed=signed), value if known else None, best and known)


def _reference(entry: dict[str, Any] | None) -> Cell:
    if entry is None:
        return Cell(MISSING)
    return Cell(
        spread(entry["mean"], entry.get("std")), entry["mean"], note=entry.get("source") or ""
    )


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


# --- dots: a seed each, on one scale for all rows -------------------------------------------

_WIDTH, _HEIGHT, _MARGIN = 190.0, 26.0, 7.0


def _span(results: dict[str, Any]) -> tuple[float, float]:
    values = [run["final_accuracy"] for run in results["runs"]]
    values += [entry["mean"] for entry in (results.get("reference") or {}).values()]
    ticks = percent_ticks(values, 5)
    return ticks[0], ticks[-1]


def _x(value: float, span: tuple[float, float]) -> float:
    share = (value - span[0]) / ((span[1] - span[0]) or 1.0)
    return _MARGIN + min(max(share, 0.0), 1.0) * (_WIDTH - 2 * _MARGIN)


def _dots(
    results: dict[str, Any],
    method: str,
    style: Style,
    span: tuple[float, float],
    reference: dict[str, Any] | None,
) -> Markup:
    entry = results["summary"][method]
    seeds = measures.final_accuracies(results, method)
    parts = []
    sd = _sd(entry)
    if sd is not None:
        low, high = _x(entry["mean"] - sd, span), _x(entry["mean"] + sd, span)
        parts.append(path([(low, 13), (high, 13)], class_="whisker"))
    if len(seeds) > 1:
        parts += [tag("circle", cx=_x(v, span), cy=13, r=2.4, class_="seed") for _, v in seeds]
    parts.append(marker(style.marker, _x(entry["mean"], span), 13, 4.0))
    if reference is not None:
        parts.append(_diamond(reference, span))
    hits = [(f"{clean(method)}, mean: {spread(entry['mean'], sd)} %", entry["mean"])]
    if len(seeds) > 1:
        hits += [(f"{clean(method)}, seed {seed}: {number(v)} %", v) for seed, v in seeds]
    if reference is not None:
        hits.append((f"report: {_reference(reference).text} %", reference["mean"]))
    parts += [
        tag(
            "circle",
            tag("title", tip),
            cx=_x(v, span),
            cy=13,
            r=4,
            class_="hit",
            data_s=0,
            data_i=i,
        )
        for i, (tip, v) in enumerate(hits)
    ]
    return _strip(parts, f"Accuracy of each seed of {clean(method)}", f"var(--s{style.colour})")


def _diamond(reference: dict[str, Any], span: tuple[float, float]) -> Markup:
    x = _x(reference["mean"], span)
    return tag("path", d=f"M{x:.1f} 6l5 7l-5 7l-5 -7z", class_="reference")


def _strip(parts: list[Markup], label: str, colour: str = "var(--muted)") -> Markup:
    base = tag("path", d=f"M{_MARGIN:g} 13H{_WIDTH - _MARGIN:g}", class_="grid")
    return chart(
        base,
        tag("g", *parts, style=f"color:{colour}"),
        width=_WIDTH,
        height=_HEIGHT,
        label=label,
        kind="strip",
    )
