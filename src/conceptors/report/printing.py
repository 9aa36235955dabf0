"""How figures look in print, and how they are saved: the same bytes for the same results."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from conceptors.report.styles import DASHES, Style
from conceptors.report.text import shorten

WIDTH = 6.3  # inches: the text width of an A4 page
FORMATS = ("svg", "pdf", "png")
MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "down": "v",
    "plus": "P",
    "cross": "X",
}
_LOOK: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so figures look alike everywhere
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.labelcolor": "#222222",
    "axes.edgecolor": "#555555",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "legend.handlelength": 3.2,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "hatch.color": "#d5d8dc",
    "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "svg.hashsalt": "conceptors",
    "pdf.fonttype": 42,
}
_NO_DATE: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}


def plain(text: str, limit: int = 34) -> str:
    """`text` for matplotlib: no mathematics in it, and never taken for a hidden label."""
    short = shorten(text, limit).replace("$", r"\$")
    return f" {short}" if short.startswith("_") else short


def line_look(found: Style, colour: str, *, marks: bool = True) -> dict[str, Any]:
    """A style as matplotlib's keywords."""
    dash = DASHES[found.dash]
    return {
        "color": colour,
        "linestyle": (0, tuple(d / 1.4 for d in dash)) if dash else "-",
        "marker": MARKERS[found.marker] if marks else None,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
    }


def save(draw: Callable[[], Figure], path: Path) -> list[Path]:
    """The figure as `path` with each of the endings, each written whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with mpl.rc_context(_LOOK), warnings.catch_warnings():
        # names in scripts that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        figure = draw()
        for ending in FORMATS:
            target = path.with_name(f"{path.name}.{ending}")
            part = target.with_name(f".{target.name}.part")
            try:
                figure.savefig(part, format=ending, metadata=_NO_DATE[ending])
                os.replace(part, target)
            finally:
                part.unlink(missing_ok=True)
            written.append(target)
    return written
