"""The figure of the growth curves, from the results of `conceptors bench growth --out DIR`.

`python -m conceptors.bench.plot DIR/cpu.json growth.svg` draws it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically
from conceptors.bench.suite import read
from conceptors.report import need_charts

_AXES = {
    "width": "width of the layers",
    "rank": "share of directions kept",
    "batch": "rows in a batch",
    "tasks": "tasks remembered",
}


def plot_growth(results: Path, picture: Path) -> Path:
    """Draw shielded against plain steps over width, rank, batch and tasks; the name says how.

    Raises:
        ImportError: the extra `figures` is not installed.
        ValueError: the file holds no growth curves, or the name no SVG, PDF or PNG.
    """
    need_charts()
    from conceptors.report.charts import Axes, Curve, joined, lines
    from conceptors.report.theme import FORMATS, convert, look, svg

    found = read(results)
    rows = [row for row in found["rows"] if row["what"] == "growth"]
    if not rows:
        raise ValueError(f"{results} holds no growth curves; run: conceptors bench growth --out")
    ending = picture.suffix.lower().lstrip(".")
    if ending not in FORMATS:
        raise ValueError(f"{picture} must end in one of .{', .'.join(FORMATS)}")
    panels = {}
    for curve, label in _AXES.items():
        points = [row for row in rows if row["notes"]["curve"] == curve]
        if points:
            curves = {name: Curve(*given) for name, given in _curves(points).items()}
            top = max(1.3, 1.1 * max(max(c.high or c.y) for c in curves.values()))
            axes = Axes(label, "times plain", (0.9, top), log_x=len(points) > 1)
            panels[label] = lines(curves, [look(0), look(1)][: len(curves)], axes)
    title = f"A shielded step against a plain one, {found['machine']['device_name']}"
    chart = joined(panels, 2).properties(title=title)
    write_atomically(picture, convert(svg(chart), ending))
    return picture


def _curves(points: list[dict[str, Any]]) -> dict[str, tuple[list[Any], ...]]:
    """Time with its quartiles, and peak memory where it was measured."""
    x = [row["notes"]["value"] for row in points]
    ratios = [row["ratio"] for row in points]
    low, high = zip(*(row["notes"]["ratio_quartiles"] for row in points))
    found: dict[str, tuple[list[Any], ...]] = {
        "time": (x, ratios, [f"{r:.2f}" for r in ratios], list(low), list(high))
    }
    peaks = [row["notes"]["peak_bytes"] for row in points]
    if all(peaks):
        memory = [peak["ours"] / peak["plain"] for peak in peaks]
        found["peak memory"] = (x, memory, [f"{m:.2f}" for m in memory])
    return found


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m conceptors.bench.plot RESULTS.json PICTURE.svg")
    print(plot_growth(Path(sys.argv[1]), Path(sys.argv[2])))
