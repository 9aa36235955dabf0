"""Curves with bands, for the page: every point has its value as a title."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from conceptors.report.scale import some
from conceptors.report.styles import Style
from conceptors.report.svg import Frame, chart, dash, join, marker, path, tag


@dataclass(frozen=True)
class Line:
    """A curve; `tips` say in words what each point is."""

    x: Sequence[float]
    y: Sequence[float]
    tips: Sequence[str]
    style: Style
    colour: str
    sd: Sequence[float] | None = None
    marks: bool = True
    held: Sequence[int] | None = field(default=None)  # indices with a tip; None for all


def line_chart(
    lines: Sequence[Line],
    frame: Frame,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_label: str,
    y_label: str,
    label: str,
) -> Markup:
    """The chart. Points to hover over lie on top, so that no curve hides another's values."""
    bands, curves, hits = [], [], []
    for k, line in enumerate(lines):
        points = [frame.at(x, y) for x, y in zip(line.x, line.y)]
        style = f"color:{line.colour}"
        if line.sd is not None:
            bands.append(_band(line, frame, style))
        body = [path(points, class_="line", stroke_dasharray=dash(line.style))]
        if line.marks:
            shown = some(len(points), 14)
            body += [marker(line.style.marker, *points[i]) for i in shown]
        curves.append(tag("g", *body, style=style))
        held = range(len(points)) if line.held is None else line.held
        for n, i in enumerate(held):
            x, y = points[i]
            tip = tag("title", line.tips[n])
            hits.append(
                tag("circle", tip, cx=x, cy=y, r=7, class_="hit", data_s=k, data_i=n, style=style)
            )
    return chart(
        frame.axes(x_ticks, y_ticks, x_label, y_label),
        *bands,
        *curves,
        *hits,
        width=frame.width,
        height=frame.height,
        label=label,
        kind="lines",
    )


def _band(line: Line, frame: Frame, style: str) -> Markup:
    """One standard deviation to both sides: an area, or a bar where there is a single point."""
    low, high = frame.y
    sd = line.sd or []
    upper = [
        frame.at(x, min(max(y + s, low), high)) for x, y, s in zip(line.x, line.y, sd, strict=True)
    ]
    lower = [
        frame.at(x, min(max(y - s, low), high)) for x, y, s in zip(line.x, line.y, sd, strict=True)
    ]
    if len(upper) == 1:
        return path([upper[0], lower[0]], class_="whisker", style=style)
    return join([path([*upper, *reversed(lower)], class_="band", style=style)])
