"""Rows as a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence

from conceptors.bench.row import Row

_HEAD = (
    "what",
    "setting",
    "plain",
    "ours",
    "ratio",
    "target",
    "met",
    "floor",
    "floor / added",
    "drift (plain)",
    "leak",
)


def table(rows: Sequence[Row]) -> str:
    """A Markdown table; numbers that were not measured are left out."""
    cells = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(_HEAD))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |"
        for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def amount(value: float | None, unit: str) -> str:
    """A number with its unit.

    >>> amount(0.00123, "s"), amount(3 * 2**20, "B"), amount(None, "s")
    ('1.230 ms', '3.0 MiB', '')
    """
    if value is None:
        return ""
    if unit == "s":
        for factor, name in ((1.0, "s"), (1e-3, "ms")):
            if abs(value) >= factor:
                return f"{value / factor:.3f} {name}"
        return f"{value * 1e6:.1f} µs"
    if unit == "B":
        return f"{value / 2**20:.1f} MiB"
    return f"{value:.3f} {unit}".strip()


def _cells(row: Row) -> tuple[str, ...]:
    aim = "" if row.target is None else f"{'>=' if row.more else '<='} {row.target:g}"
    if aim and row.ratio is None:
        aim += f" {row.unit}"
    drift = "" if row.drift is None else f"{row.drift:.2g}"
    if row.drift_plain is not None:
        drift += f" ({row.drift_plain:.2g})"
    return (
        row.what,
        row.setting.replace("|", "/"),
        amount(row.plain, row.unit),
        amount(row.ours, row.unit),
        "" if row.ratio is None else f"{row.ratio:.3f}",
        aim,
        {None: "", True: "met", False: "MISSED"}[row.met],
        amount(row.floor, "s"),
        "" if row.share is None else f"{row.share:.0%}",
        drift,
        "" if row.leak is None else f"{row.leak:.1e}",
    )
