"""The figure of the growth curves, from the results of `conceptors bench growth --out DIR`.

`python -m conceptors.bench.plot DIR/cpu.json growth.svg` draws it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from conceptors.bench.suite import read

_AXES = {
    "width": "width of the layers",
    "rank": "share of directions kept",
    "batch": "rows in a batch",
    "tasks": "tasks remembered",
}


def plot_growth(results: Path, picture: Path) -> Path:
    """Draw shielded against plain steps over width, rank, batch and tasks; PNG or SVG by name.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the file holds no growth curves.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("figures need matplotlib: pip install 'conceptors[figures]'") from None
    found = read(results)
    rows = [row for row in found["rows"] if row["what"] == "growth"]
    if not rows:
        raise ValueError(f"{results} holds no growth curves; run: conceptors bench growth --out")
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    for axes, (curve, label) in zip(figure.subplots(2, 2).flat, _AXES.items()):
        points = [row for row in rows if row["notes"]["curve"] == curve]
        _panel(axes, points, label)
    figure.suptitle(f"A shielded step against a plain one, {found['machine']['device_name']}")
    figure.savefig(picture, dpi=150)
    return picture


def _panel(axes: Any, points: list[dict[str, Any]], label: str) -> None:
    x = [row["notes"]["value"] for row in points]
    axes.plot(x, [row["ratio"] for row in points], "o-", color="C0", label="time")
    low, high = zip(*(row["notes"]["ratio_quartiles"] for row in points)) if points else ((), ())
    axes.fill_between(x, low, high, color="C0", alpha=0.2, linewidth=0)
    peaks = [row["notes"]["peak_bytes"] for row in points]
    if points and all(peaks):
        memory = [peak["ours"] / peak["plain"] for peak in peaks]
        axes.plot(x, memory, "s--", color="C1", label="peak memory")
    axes.axhline(1.0, color="0.6", linewidth=1)
    if len(points) > 1:
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{value:g}" for value in x], minor=False)
        axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylabel("times plain")
    largest = max((row["ratio"] for row in points), default=1.0)
    axes.set_ylim(0.9, max(1.3, 1.1 * largest))
    axes.legend(frameon=False, loc="upper right")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m conceptors.bench.plot RESULTS.json PICTURE.svg")
    print(plot_growth(Path(sys.argv[1]), Path(sys.argv[2])))
