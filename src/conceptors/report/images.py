"""Images projected by a conceptor C and by F = ¬C (the paper's figures 3 and 4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from conceptors.report import charts
from conceptors.report.measures import Array
from conceptors.report.text import shorten
from conceptors.report.theme import save


def draw(originals: Any, claimed: Any, free: Any, path: Path, title: str) -> list[Path]:
    """Columns: the images, what C keeps, what F keeps; one row per image; SVG, PDF and PNG."""
    x, c, f = (
        _images(v, n) for v, n in ((originals, "originals"), (claimed, "claimed"), (free, "free"))
    )
    if not x.shape == c.shape == f.shape:
        raise ValueError(
            f"originals {list(x.shape)}, claimed {list(c.shape)} and free {list(f.shape)} must "
            f"have the same shape [k, height, width]"
        )
    stem = path.with_suffix("") if path.suffix in (".svg", ".pdf", ".png") else path
    columns = {"images x": x, "projected by C": c, "projected by F = ¬C": f}
    return save(charts.pictures(columns, shorten(title, 60)), stem)


def _images(given: Any, name: str) -> Array:
    if hasattr(given, "detach"):
        given = given.detach().cpu().numpy()
    found = np.asarray(given, dtype=float)
    if found.ndim != 3 or 0 in found.shape:
        raise ValueError(f"{name} must be images [k, height, width], got {list(found.shape)}")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} has NaN or infinite pixels")
    return found
