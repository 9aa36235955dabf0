"""Heat maps for the page: the stronger the colour, the higher the value.

Up to 20 tasks every cell is an element with a title; beyond that the cells are one small image,
and the values lie in an attribute that the page's script reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from conceptors.report.measures import Array, Matrix
from conceptors.report.png import opacity_png
from conceptors.report.scale import task_ticks
from conceptors.report.svg import chart, join, tag
from conceptors.report.text import number, shorten, spread

NUMBERS = 10  # up to here cells show their number
CELLS = 20  # up to here cells are elements
_LEFT, _TOP, _RIGHT, _BOTTOM = 62.0, 8.0, 8.0, 46.0


@dataclass(frozen=True)
class Look:
    """What a heat map is of, in words and numbers."""

    low: float
    high: float
    digits: int  # of the numbers in tips
    unit: str
    rows: str  # what the rows are, such as "after learning task"
    columns: str
    label: str  # accessible name


def heat_map(
    matrix: Matrix, look: Look, names: Sequence[str], muted: npt.NDArray[np.bool_], key: str
) -> Markup:
    """The map; cells of `muted` keep their number but get no colour. `key` is an id of its own."""
    rows, columns = matrix.mean.shape
    side = 225.0 if columns <= 3 else 300.0
    cell = side / columns
    height = rows * min(cell, 56.0)  # cells of few tasks are wide, not huge
    down = height / rows
    share = (matrix.mean - look.low) / (look.high - look.low)
    share = np.where(muted, np.nan, share)
    ground = tag("rect", x=_LEFT, y=_TOP, width=side, height=height, class_="heat-ground")
    data: dict[str, object] = {}
    if max(rows, columns) <= CELLS:
        body = _cells(matrix, look, names, muted, share, cell, down)
    else:
        body = _image(share, bool(muted.any()), side, height, key)
        data = {
            "data_values": json.dumps(_rounded(matrix.mean, look.digits)),
            "data_box": f"{_LEFT:g} {_TOP:g} {side:g} {height:g}",
            "data_words": json.dumps([look.rows, look.columns, look.unit]),
        }
    ticks = _ticks(rows, columns, names, look, side, height)
    return chart(
        tag("g", ground, body, ticks, **data),
        width=_LEFT + side + _RIGHT,
        height=_TOP + height + _BOTTOM,
        label=look.label,
        kind="heat",
        most=1.35,
    )


def _cells(
    matrix: Matrix,
    look: Look,
    names: Sequence[str],
    muted: npt.NDArray[np.bool_],
    share: Array,
    across: float,
    down: float,
) -> Markup:
    """A rectangle a cell, with its number where there is room for it."""
    rows, columns = matrix.mean.shape
    parts = []
    size = 15.0 if columns <= 4 else 12.0 if columns <= 6 else 10.5
    for (i, j), value in np.ndenumerate(matrix.mean):
        x, y = _LEFT + j * across, _TOP + i * down
        if np.isnan(value):
            continue
        sd = None if matrix.sd is None else float(matrix.sd[i, j])
        after = f"{look.rows} {i + 1}, " if rows == columns else ""
        words = (
            f"{after}{look.columns} {_named(names, j)}: "
            f"{spread(float(value), sd, look.digits)}{look.unit}"
        )
        if muted[i, j]:
            words += " (not learned yet)"
        strength = 0.0 if muted[i, j] else float(share[i, j])
        parts.append(
            tag(
                "rect",
                tag("title", words),
                x=x + 0.75,
                y=y + 0.75,
                width=across - 1.5,
                height=down - 1.5,
                rx=2 if columns <= NUMBERS else None,
                fill_opacity=strength,
                class_="cell",
                data_s=i,
                data_i=j,
            )
        )
        if columns <= NUMBERS:
            kind = "future" if muted[i, j] else "on" if strength > 0.6 else "off"
            parts.append(
                tag(
                    "text",
                    _short(float(value), look, columns),
                    x=x + across / 2,
                    y=y + down / 2,
                    text_anchor="middle",
                    dominant_baseline="central",
                    class_=f"value {kind}",
                    font_size=size,
                    aria_hidden="true",
                )
            )
    return join(parts)


def _image(share: Array, future: bool, side: float, height: float, key: str) -> Markup:
    """All cells at once: a mask of opacities over the colour of the theme."""
    box = {"x": _LEFT, "y": _TOP, "width": side, "height": height}
    picture = tag(
        "image",
        href=opacity_png(share),
        preserveAspectRatio="none",
        style="image-rendering:pixelated",
        **box,
    )
    parts = []
    if future:  # hatching above the diagonal tells not learned from forgotten
        line = tag("path", d="M0 6L6 0", class_="hatch")
        parts.append(
            tag(
                "pattern", line, id=f"{key}-hatch", width=6, height=6, patternUnits="userSpaceOnUse"
            )
        )
        corner = f"M{_LEFT:g} {_TOP:g}H{_LEFT + side:g}V{_TOP + height:.1f}Z"
        parts.append(tag("path", d=corner, fill=f"url(#{key}-hatch)"))
    parts.append(tag("mask", picture, id=key, style="mask-type:alpha"))
    parts.append(tag("rect", class_="heat-full", mask=f"url(#{key})", **box))
    return join(parts)


def _ticks(
    rows: int, columns: int, names: Sequence[str], look: Look, side: float, height: float
) -> Markup:
    """Task numbers, or short names where there are few tasks; what rows and columns are."""
    parts = []
    across, down = side / columns, height / rows
    few = columns <= 3
    for t in task_ticks(columns, NUMBERS if columns <= NUMBERS else 6):
        text = shorten(names[t - 1], 14 if columns < 3 else 10) if few else str(t)
        parts.append(
            tag(
                "text",
                text,
                x=_LEFT + (t - 0.5) * across,
                y=_TOP + height + 18,
                text_anchor="middle",
                class_="tick",
            )
        )
    for t in task_ticks(rows, NUMBERS if rows <= NUMBERS else 6):
        text = str(t) if rows == columns else "all"
        parts.append(
            tag(
                "text",
                text,
                x=_LEFT - 8,
                y=_TOP + (t - 0.5) * down,
                text_anchor="end",
                dominant_baseline="central",
                class_="tick",
            )
        )
    parts.append(
        tag(
            "text",
            look.columns,
            x=_LEFT + side / 2,
            y=_TOP + height + 40,
            text_anchor="middle",
            class_="label",
        )
    )
    middle = _TOP + height / 2
    parts.append(
        tag(
            "text",
            look.rows,
            x=16,
            y=middle,
            text_anchor="middle",
            class_="label",
            transform=f"rotate(-90 16 {middle:.1f})",
        )
    )
    return join(parts)


def _named(names: Sequence[str], j: int) -> str:
    name = shorten(names[j], 60)
    return str(j + 1) if name == str(j + 1) else f"{j + 1} ({name})"


def _short(value: float, look: Look, columns: int) -> str:
    """The number for a cell: as many digits as fit."""
    if look.high > 1:
        return number(value, 1 if columns <= 6 else 0)
    return number(value, 2) if columns <= 6 else number(value, 2).replace("0.", ".", 1)


def _rounded(values: Array, digits: int) -> list[list[float | None]]:
    return [[None if np.isnan(v) else round(float(v), digits) for v in row] for row in values]
