"""Panels of the page: a chart, a label that describes it, and its values as a table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from conceptors.report import charts
from conceptors.report.text import MISSING, number, spread
from conceptors.report.theme import Drawing, Look


@dataclass(frozen=True)
class Panel:
    """A chart with title and label; `table` is None where it would be too long."""

    title: str
    chart: Drawing
    label: str
    table: pd.DataFrame | None = None


@dataclass(frozen=True)
class Section:
    """Charts that answer one question; `facts` are numbers that the explanation mentions.

    `name` is the file name; titles and explanations are in `templates/panels.html`.
    """

    name: str
    panels: list[Panel]
    facts: dict[str, Any] = field(default_factory=dict)


def curve_panel(
    title: str,
    frame: pd.DataFrame,
    looks: Sequence[Look],
    at: str,
    x: str,
    y: str,
    unit: str = "",
    digits: int = 2,
    domain: tuple[float, float] | None = None,
) -> Panel:
    """Plot curves of `series, x, value` and optionally `sd`; `at` names x in the tips."""
    if "sd" not in frame:
        frame = frame.assign(sd=np.nan)
    texts = [spread(value, sd, digits) for value, sd in zip(frame.value, frame.sd)]
    points = zip(frame.series, frame.x, texts)
    tips = [f"{series}, {at} {place:,.6g}: {text}{unit}" for series, place, text in points]
    frame = frame.assign(text=texts, tip=tips)
    table = _wide(frame, "x", "series").rename_axis(x) if frame.x.nunique() <= 100 else None
    return Panel(title, charts.lines(frame, looks, x, y, domain), f"{y}, {title}", table)


def matrix_panel(
    title: str,
    frame: pd.DataFrame,
    span: tuple[float, float],
    words: tuple[str, str],
    names: Sequence[str],
    unit: str = "",
) -> Panel:
    """Plot cells of `after, task, value`; `words` describe rows and columns, `names` the tasks.

    If the two words differ, cells above the diagonal belong to tasks that were not learned yet.
    """
    down, across = words
    hidden = (frame.task > frame.after) & (down != across)
    texts = [number(value) for value in frame.value]
    columns = [f"{j}" if names[j - 1] == str(j) else f"{j} ({names[j - 1]})" for j in frame.task]
    ends = [f"{unit} (not learned yet)" if is_hidden else unit for is_hidden in hidden]
    cells = zip(frame.after, columns, texts, ends)
    tips = [f"{down} {i}, {across} {j}: {text}{end}" for i, j, text, end in cells]
    frame = frame.assign(row=frame.after, column=frame.task, hidden=hidden, text=texts, tip=tips)
    digits = 2 if not unit else 0 if frame.task.max() > 3 else 1
    table = None
    if frame.task.max() <= charts.CELLS:
        wide = _wide(frame, "row", "column").rename_axis(down)
        table = wide.rename(columns=lambda task: f"task {task}")
    label = f"{down} and {across}, {title}"
    return Panel(title, charts.heat(frame, span, down, across, digits), label, table)


def _wide(frame: pd.DataFrame, rows: str, columns: str) -> pd.DataFrame:
    """Pivot the texts to one column per value of `columns`, in their order."""
    wide = frame.pivot(index=rows, columns=columns, values="text")
    return wide.reindex(columns=frame[columns].unique()).fillna(MISSING)
