"""Images projected by a conceptor C and by F = ¬C (the report's figures 3 and 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from conceptors.report.measures import Array
from conceptors.report.printing import plain, save


def draw(originals: Any, claimed: Any, free: Any, path: Path, title: str) -> list[Path]:
    """Columns: the images, what C keeps, what F keeps; a row an image; SVG, PDF and PNG."""
    x, c, f = (
        _images(v, n) for v, n in ((originals, "originals"), (claimed, "claimed"), (free, "free"))
    )
    if not x.shape == c.shape == f.shape:
        raise ValueError(
            f"originals {list(x.shape)}, claimed {list(c.shape)} and free {list(f.shape)} must "
            f"have the same shape [k, height, width]"
        )
    stem = path.with_suffix("") if path.suffix in (".svg", ".pdf", ".png") else path
    return save(lambda: _figure(x, c, f, title), stem)


def _figure(x: Array, c: Array, f: Array, title: str) -> Figure:
    rows, height, width = x.shape
    cell = 1.2  # inches
    figure = Figure(figsize=(3 * 1.75, rows * cell * max(height / width, 0.3) + 0.75))
    grid = figure.subplots(rows, 3, squeeze=False)
    heads = ("images x", "(a) images projected by C", "(b) images projected by F = ¬C")
    top = max(float(np.abs(x).max()), 1e-12)
    for column, (head, stack) in enumerate(zip(heads, (x, c, f))):
        grid[0, column].set_title(head, fontsize=7.5, loc="center")
        for row in range(rows):
            axes = grid[row, column]
            # one grey scale for all, so that what F leaves is seen as faint as it is
            axes.imshow(stack[row], cmap="gray_r", vmin=0, vmax=top, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set(visible=True, linewidth=0.5, edgecolor="#bbbbbb")
    if title:
        figure.suptitle(plain(title, 90), fontsize=9)
    return figure


def _images(given: Any, name: str) -> Array:
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    found = np.asarray(given, dtype=float)
    if found.ndim != 3 or 0 in found.shape:
        raise ValueError(f"{name} must be images [k, height, width], got {list(found.shape)}")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has NaN or infinite pixels")
    return found
