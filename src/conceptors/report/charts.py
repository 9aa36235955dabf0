"""Each kind of chart, described once in altair for the page and for files.

Charts take tidy tables. Curves: `series, x, value, sd, tip`; cells: `row, column, value, tip`.
`tip` is the text that appears when a reader points at a mark.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from conceptors.report.data import evenly
from conceptors.report.text import labels, number
from conceptors.report.theme import DASHES, LIGHT, Drawing, Look

WIDTH, HEIGHT = 290, 190  # with axes, a chart is as wide as a phone: text stays legible
CELLS = 10  # up to this size, every cell of a matrix shows its number


def lines(
    frame: pd.DataFrame,
    looks: Sequence[Look],
    x: str,
    y: str,
    domain: tuple[float, float] | None = None,
) -> Drawing:
    """One line per series with at most 12 markers, and a band of one standard deviation.

    `x` and `y` are titles; the y axis covers `domain` (default: the range of the data).
    """
    names = list(frame.series.unique())
    short = dict(zip(names, labels(names)))
    deviation, (low, high) = frame.sd.fillna(0.0), domain or (0.0, 100.0)
    groups = frame.groupby("series")
    frame = frame.assign(
        series=frame.series.map(short),
        low=(frame.value - deviation).clip(low, high),
        high=(frame.value + deviation).clip(low, high),
        marked=groups.cumcount() % np.ceil(groups.x.transform("size") / 12) == 0,
    )
    columns = max(1, min(len(short), WIDTH // (7 * max(map(len, short.values())) + 34)))

    def channel(kind: Any, values: list[Any]) -> Any:
        scale = alt.Scale(domain=list(short.values()), range=values)
        return kind("series:N", scale=scale, legend=alt.Legend(title=None, columns=columns))

    colour = channel(alt.Color, [LIGHT[look.colour] for look in looks])
    dash = channel(alt.StrokeDash, [DASHES[look.dash] for look in looks])
    shape = channel(alt.Shape, [look.shape for look in looks])
    across = alt.X(
        "x:Q",
        title=x,
        scale=alt.Scale(domain=[frame.x.min(), frame.x.max()], nice=False, padding=10),
        axis=alt.Axis(grid=False, **_ticks(sorted(frame.x.unique().tolist()))),
    )
    scale = alt.Scale(domain=domain) if domain else alt.Scale(zero=False)
    up = alt.Y("value:Q", title=y, scale=scale, axis=alt.Axis(tickCount=6))
    base = alt.Chart(_data(frame)).encode(x=across, color=colour)
    band = base.mark_area(aria=False, opacity=0.16, interpolate="linear")
    curves = base.mark_line(aria=False, strokeWidth=2).encode(y=up, strokeDash=dash)
    points = base.transform_filter("datum.marked").mark_point(
        filled=True, opacity=1, size=50, stroke=LIGHT["paper"], strokeWidth=1
    )
    parts = [curves, points.encode(y=up, shape=shape, description="tip:N")]
    if frame.sd.notna().any():
        low_to_high = {"y": alt.Y("low:Q", title=y, scale=scale), "y2": "high:Q"}
        parts = [band.encode(**low_to_high), *parts]
    return alt.layer(*parts).properties(width=WIDTH, height=HEIGHT)


def _ticks(values: list[float]) -> dict[str, Any]:
    ticks: dict[str, Any] = {"tickCount": 5}
    if len(values) <= 10 and values[-1] < 1000:
        ticks = {"values": values}
    if all(float(value).is_integer() for value in values):
        ticks |= {"tickMinStep": 1, "format": ",d"}
    return ticks


def heat(
    frame: pd.DataFrame, span: tuple[float, float], down: str, across: str, digits: int
) -> Drawing:
    """At most 20 x 20 cells, coloured from low to high unless `hidden`; up to 10 show numbers."""
    frame = frame[frame.row.isin(_thin(frame.row)) & frame.column.isin(_thin(frame.column))]
    height, width = frame.row.nunique(), frame.column.nunique()
    low, high = span
    share = ((frame.value - low) / (high - low)).clip(0, 1).where(~frame.hidden, 0.0)
    ink = np.where(frame.hidden, "muted", np.where(share > 0.55, "on-heat", "ink"))
    texts = [number(value, digits) for value in frame.value]
    if width > 6:
        texts = [text.removeprefix("0") if "." in text else text for text in texts]
    frame = frame.assign(share=share, ink=[LIGHT[name] for name in ink], text=texts)
    axis: dict[str, Any] = {"domain": False, "ticks": False, "labelOverlap": True}
    base = alt.Chart(_data(frame)).encode(
        x=alt.X("column:O", title=across, axis=alt.Axis(**axis), scale=alt.Scale(padding=0)),
        y=alt.Y("row:O", title=down, axis=alt.Axis(**axis, labels=height > 1)),
    )
    cells = base.mark_rect(fill=LIGHT["heat"], stroke=LIGHT["rule"], strokeWidth=0.6)
    parts = [cells.encode(fillOpacity=alt.FillOpacity("share:Q", scale=None), description="tip:N")]
    if width <= CELLS:
        words = base.mark_text(aria=False, fontSize=12)
        parts.append(words.encode(text="text:N", color=alt.Color("ink:N", scale=None)))
    side = min(WIDTH / width, 80.0)
    return alt.layer(*parts).properties(width=WIDTH, height=max(height * side, 40.0))


def joined(charts: Iterable[tuple[str, Drawing]], columns: int) -> Drawing:
    """Join several charts into one, each under its name and with its own scales."""
    named = [chart.properties(title=name) for name, chart in charts]
    if len(named) == 1:
        return named[0]
    together: Drawing = alt.concat(*named, columns=columns).resolve_scale(
        color="independent", shape="independent", strokeDash="independent"
    )
    return together


def _thin(values: pd.Series) -> list[Any]:
    """Return at most 20 of the values, evenly spread."""
    unique = values.unique().tolist()
    return [unique[k] for k in evenly(len(unique), 20)]


def _data(frame: pd.DataFrame) -> alt.InlineData:
    """Rows for Vega; NaN becomes null."""
    return alt.InlineData(values=json.loads(frame.to_json(orient="records")))
