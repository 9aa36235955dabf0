"""One description of each kind of chart in altair, for the page and for files alike.

Every mark a reader may ask about has its words in the channel `description`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import numpy.typing as npt

from conceptors.report.measures import Array, Band, Matrix, some
from conceptors.report.text import clean, labels, number, spread
from conceptors.report.theme import DASHES, LIGHT, Drawing, Look

Rows = list[dict[str, Any]]
WIDTH, HEIGHT = 400, 250
CELLS = 10  # up to here every cell of a matrix has its number
MOST = 20  # rows and columns of a matrix that are drawn


@dataclass(frozen=True)
class Curve:
    """Values over x, with what each point says; `low` and `high` where there is a spread."""

    x: Sequence[Any]  # numbers; for bars also words
    y: Sequence[float]
    tips: Sequence[str]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Axes:
    """The titles of both axes and how y is scaled."""

    x: str
    y: str
    domain: tuple[float, float] | None = None  # None: close to the data
    log: bool = False
    log_x: bool = False
    whole: bool = False  # x has whole numbers only


def band_curve(band: Band, name: str, unit: str, digits: int, top: float) -> Curve:
    """A measure over the number of learned tasks, with one standard deviation."""
    sd = [None] * len(band.tasks) if band.sd is None else [float(s) for s in band.sd]
    tips = [
        f"{clean(name)}, after task {t}: {spread(float(m), s, digits)}{unit}"
        for t, m, s in zip(band.tasks, band.mean, sd)
    ]
    mean = [float(m) for m in band.mean]
    if band.sd is None:
        return Curve(band.tasks, mean, tips)
    low = np.clip(band.mean - band.sd, 0, top)
    high = np.clip(band.mean + band.sd, 0, top)
    return Curve(band.tasks, mean, tips, low.tolist(), high.tolist())


def over_tasks(curves: Mapping[str, Curve], looks: Sequence[Look], axes: Axes) -> Drawing:
    """Lines over the number of learned tasks; bars where there are only one or two of them."""
    few = len({x for curve in curves.values() for x in curve.x}) <= 2
    return bars(curves, looks, axes) if few else lines(curves, looks, axes)


def bars(curves: Mapping[str, Curve], looks: Sequence[Look], axes: Axes) -> Drawing:
    """At each x one bar per curve, in their order, with its value; words may have several lines."""
    rows, scales = _series(curves, looks)
    first = alt.Chart(_data(rows)).encode(
        x=alt.X(
            "x:O",
            title=axes.x or None,
            sort="ascending" if axes.whole else None,
            axis=alt.Axis(labelExpr="split(datum.label, '\\n')"),
        ),
        xOffset=alt.XOffset("series:N", sort=labels(list(curves))),
    )
    scale = alt.Scale(domain=axes.domain) if axes.domain else alt.Scale(zero=True)
    y = alt.Y("y:Q", title=axes.y, scale=scale)
    bars = first.mark_bar().encode(y=y, color=scales["color"], description="tip:N")
    spreads = first.mark_rule(aria=False, color=LIGHT["ink"]).encode(y="low:Q", y2="high:Q")
    values = first.mark_text(aria=False, dy=-9, fontSize=11, color=LIGHT["ink"]).encode(
        y=alt.Y("top:Q"), text="text:N"
    )
    parts = [bars, spreads] + ([values] if len(rows) <= 12 else [])
    return alt.layer(*parts).properties(width=WIDTH, height=HEIGHT)


def lines(
    curves: Mapping[str, Curve], looks: Sequence[Look], axes: Axes, *, marks: int = 12
) -> Drawing:
    """One line per curve with at most `marks` markers, and a band where there is a spread."""
    rows, scales = _series(curves, looks, marks)
    kind: dict[str, Any] = {"type": "log"} if axes.log else {"zero": False}
    scale = alt.Scale(domain=axes.domain) if axes.domain else alt.Scale(**kind)
    across = [x for curve in curves.values() for x in curve.x]
    ticks: dict[str, Any] = {"grid": False, "tickCount": 8}
    if axes.whole:
        ticks |= {"tickMinStep": 1, "format": "d"}
    if (axes.whole or axes.log_x) and len(set(across)) <= 12:
        ticks = {"grid": False, "values": sorted(set(across)), "labelOverlap": False}
    kind_x: dict[str, Any] = {"type": "log", "base": 2} if axes.log_x else {"padding": 8}
    x = alt.X(
        "x:Q",
        title=axes.x,
        scale=alt.Scale(domain=[min(across), max(across)], nice=False, **kind_x),
        axis=alt.Axis(**ticks),
    )
    y = alt.Y("y:Q", title=axes.y, scale=scale, axis=alt.Axis(tickCount=6))
    chart = alt.Chart(_data(rows)).encode(x=x)
    drawn = chart.mark_line(aria=False, strokeWidth=2).encode(
        y=y, color=scales["color"], strokeDash=scales["dash"]
    )
    points = (
        chart.transform_filter("datum.marked")
        .mark_point(filled=True, opacity=1, size=55, stroke=LIGHT["paper"], strokeWidth=1)
        .encode(y=y, color=scales["color"], shape=scales["shape"], description="tip:N")
    )
    parts = [drawn, points]
    if any(curve.low is not None for curve in curves.values()):
        band = chart.mark_area(aria=False, opacity=0.16, interpolate="linear").encode(
            y=alt.Y("low:Q", title=axes.y, scale=scale), y2="high:Q", color=scales["color"]
        )
        parts = [band, *parts]
    return alt.layer(*parts).properties(width=WIDTH, height=HEIGHT)


def seeds(
    found: Mapping[str, Sequence[tuple[int, float]]],
    published: Mapping[str, float],
    looks: Mapping[str, Look],
    title: str,
    goal: float | None = None,
) -> Drawing:
    """One row per method: its seeds as dots, a stroke at their mean, published values below.

    `goal` is a dashed line through all rows.
    """
    names = list(dict.fromkeys([*found, *published]))
    short = dict(zip(names, labels(names, 30)))
    dots, means = [], []
    for name, values in found.items():
        base = {"series": short[name], "colour": LIGHT[looks[name].colour]}
        for seed, v in values:
            dots.append(base | {"x": v, "tip": f"{clean(name)}, seed {seed}: {number(v)} %"})
        mean = float(np.mean([v for _, v in values]))
        means.append(base | {"x": mean, "tip": f"{clean(name)}, mean: {number(mean)} %"})
    others = [
        {"series": short[name], "x": v, "tip": f"{clean(name)}, published: {number(v)} %"}
        for name, v in published.items()
    ]
    room = min(190, 8 * max(len(name) for name in short.values()))  # in whatever font there is
    axis = alt.Axis(labelLimit=190, minExtent=room)
    y = alt.Y("series:N", sort=list(short.values()), title=None, axis=axis)
    x = alt.X("x:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=6))
    colour = alt.Color("colour:N", scale=None)
    parts = [
        alt.Chart(_data(dots))
        .mark_circle(size=46, opacity=0.45)
        .encode(x=x, y=y, color=colour, description="tip:N"),
        alt.Chart(_data(means))
        .mark_tick(thickness=2.5, size=20)
        .encode(x=x, y=y, color=colour, description="tip:N"),
    ]
    if others:
        diamond: dict[str, Any] = {
            "shape": "diamond",
            "size": 60,
            "color": LIGHT["ink"],
            "yOffset": 15,
        }
        parts.append(
            alt.Chart(_data(others)).mark_point(**diamond).encode(x=x, y=y, description="tip:N")
        )
    if goal is not None:
        line = alt.Chart(_data([{"x": goal, "tip": f"goal: {number(goal)} %"}]))
        dashed = line.mark_rule(strokeDash=[5, 4], color=LIGHT["muted"])
        parts.append(dashed.encode(x=x, description="tip:N"))
    return alt.layer(*parts).properties(width=WIDTH - 40, height=44 * len(names))


def heat(
    matrix: Matrix,
    span: tuple[float, float],
    words: tuple[str, str, str],
    names: Sequence[str],
    hidden: npt.NDArray[np.bool_],
) -> Drawing:
    """Cells from light to dark with numbers where there is room; `words`: rows, columns, unit."""
    down, across, unit = words
    height, width = matrix.mean.shape
    percent = unit == " %"
    size = 10 if width > 6 else 12 if width > 3 else 14
    rows: Rows = []
    for i in some(height, MOST):
        for j in some(width, MOST):
            value = float(matrix.mean[i, j])
            if np.isnan(value):
                continue
            place = float(np.clip((value - span[0]) / (span[1] - span[0]), 0, 1))
            share = 0.0 if hidden[i, j] else place
            sd = None if matrix.sd is None else float(matrix.sd[i, j])
            after = f"{down} {i + 1}" if height > 1 else down
            name = "" if names[j] == str(j + 1) else f" ({clean(names[j])})"
            tip = f"{after}, {across} {j + 1}{name}: {spread(value, sd, 2)}{unit}"
            rows.append(
                {
                    "row": i + 1,
                    "column": j + 1,
                    "share": share,
                    "text": _short(value, percent, width),
                    "ink": LIGHT["muted" if hidden[i, j] else "on-heat" if share > 0.55 else "ink"],
                    "tip": f"{tip} (not learned yet)" if hidden[i, j] else tip,
                }
            )
    axis: dict[str, Any] = {"domain": False, "ticks": False, "labelOverlap": True}
    blank = alt.Axis(labels=False, **{k: v for k, v in axis.items() if k != "labelOverlap"})
    chart = alt.Chart(_data(rows)).encode(
        x=alt.X("column:O", title=across, axis=alt.Axis(**axis), scale=alt.Scale(padding=0)),
        y=alt.Y("row:O", title=down, axis=alt.Axis(**axis) if height > 1 else blank),
    )
    cells = chart.mark_rect(fill=LIGHT["heat"], stroke=LIGHT["rule"], strokeWidth=0.6).encode(
        fillOpacity=alt.FillOpacity("share:Q", scale=None), description="tip:N"
    )
    parts = [cells]
    if width <= CELLS:
        text = chart.mark_text(aria=False, fontSize=size)
        parts.append(text.encode(text="text:N", color=alt.Color("ink:N", scale=None)))
    side = 300 / min(width, MOST)
    tall = min(height, MOST) * min(side, 90.0)
    return alt.layer(*parts).properties(width=300, height=max(tall, 40.0))


def pictures(
    columns: Mapping[str, Array],
    title: str = "",
    notes: Mapping[str, Sequence[str]] | None = None,
    side: int = 110,
) -> Drawing:
    """Images as pixels on one grey scale: one column per name, one row per image.

    `notes` are words below the images, by the name of the column; `side` is an image's width.
    """
    top = max(float(np.abs(next(iter(columns.values()))).max()), 1e-12)
    count, height, width = next(iter(columns.values())).shape
    size = {"width": side, "height": max(side / width * height, 20.0)}
    bare: dict[str, Any] = {"labels": False, "ticks": False, "domain": False, "grid": False}
    down = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[height, 0], nice=False))
    charts = []
    for k in range(count):
        for name, stack in columns.items():
            shown = np.clip(stack[k] / top, 0, 1)
            rows = [
                {"x": int(x), "x2": int(x) + 1, "y": int(y), "y2": int(y) + 1, "v": float(v)}
                for (y, x), v in np.ndenumerate(shown)
                if v > 0.01
            ]
            axis = alt.Axis(title=notes[name][k], **bare) if notes else None
            right = alt.X("x:Q", axis=axis, scale=alt.Scale(domain=[0, width], nice=False))
            pixels = (
                alt.Chart(_data(rows))
                .mark_rect(aria=False, fill="#000000", stroke=None)
                .encode(
                    x=right,
                    x2="x2:Q",
                    y=down,
                    y2="y2:Q",
                    fillOpacity=alt.FillOpacity("v:Q", scale=None),
                )
            )
            head = alt.Title(name.split("\n") if k == 0 else "", fontSize=11, anchor="middle")
            charts.append(pixels.properties(title=head, view={"stroke": LIGHT["rule"]}, **size))
    together = alt.concat(*charts, columns=len(columns), spacing=8)
    return together.properties(title=title) if title else together


def joined(charts: Iterable[tuple[str, Drawing]], columns: int, title: str = "") -> Drawing:
    """Several charts as one, each under its name; their scales stay apart."""
    named = [chart.properties(title=name) if name else chart for name, chart in charts]
    if len(named) == 1:
        return named[0]
    together = alt.concat(*named, columns=columns)
    apart: Drawing = together.resolve_scale(
        color="independent", shape="independent", strokeDash="independent"
    )
    return apart.properties(title=title) if title else apart


def _data(rows: Rows) -> alt.InlineData:
    return alt.InlineData(values=rows)


def _series(
    curves: Mapping[str, Curve], looks: Sequence[Look], marks: int = 0
) -> tuple[Rows, dict[str, Any]]:
    """The rows of all curves, and how colour, dashes and shapes tell them apart."""
    short = labels(list(curves))
    rows: Rows = []
    digits = 2 if max(y for curve in curves.values() for y in curve.y) <= 1 else 1
    for name, curve in zip(short, curves.values()):
        marked = set(some(len(curve.x), marks)) if marks else set()
        low, high = curve.low or curve.y, curve.high or curve.y
        for k, (x, y) in enumerate(zip(curve.x, curve.y)):
            row = {"x": x, "y": y, "low": low[k], "high": high[k], "top": high[k]}
            words = {"series": name, "tip": curve.tips[k], "text": f"{y:.{digits}f}"}
            rows.append(row | words | {"marked": k in marked})
    columns = max(1, min(len(short), WIDTH // (7 * max(map(len, short)) + 34)))
    legend = alt.Legend(title=None, columns=columns)

    def channel(kind: type[Any], values: list[Any]) -> Any:
        return kind("series:N", scale=alt.Scale(domain=short, range=values), legend=legend)

    return rows, {
        "color": channel(alt.Color, [LIGHT[look.colour] for look in looks]),
        "dash": channel(alt.StrokeDash, [DASHES[look.dash] for look in looks]),
        "shape": channel(alt.Shape, [look.shape for look in looks]),
    }


def _short(value: float, percent: bool, width: int) -> str:
    """A value as a cell has room for it."""
    if percent:
        return f"{value:.{1 if width <= 3 else 0}f}"
    return f"{value:.2f}" if width <= 6 else f"{value:.2f}".replace("0.", ".")
