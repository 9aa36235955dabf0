"""Drawing in SVG: elements with everything escaped, markers, and a frame with axes.

Colours are CSS variables of the page, so that a drawing follows the light and the dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from conceptors.report.styles import DASHES, Style
from conceptors.report.text import clean


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """An element; `class_` and `stroke_width` become class and stroke-width, None is left out.

    >>> print(tag("text", "a < b", x=1.5, text_anchor="end"))
    <text x="1.5" text-anchor="end">a &lt; b</text>
    """
    parts = [
        f' {key.rstrip("_").replace("_", "-")}="{_safe(value)}"'
        for key, value in attributes.items()
        if value is not None
    ]
    inner = "".join(str(_safe(child)) for child in children)
    return Markup(f"<{name}{''.join(parts)}>{inner}</{name}>")


def join(parts: Sequence[Markup]) -> Markup:
    """Elements one after another."""
    return Markup("").join(parts)


def _safe(value: object) -> Markup:
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        value = f"{value:.2f}".rstrip("0").rstrip(".")
    return escape(clean(str(value)))


def path(points: Sequence[tuple[float, float]], **attributes: object) -> Markup:
    """A line through the points."""
    return tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points), **attributes)


def dash(found: Style) -> str | None:
    """The dashes of a style, as SVG writes them."""
    return " ".join(f"{d:g}" for d in DASHES[found.dash]) or None


def marker(kind: str, x: float, y: float, r: float = 3.4) -> Markup:
    """A small filled shape around (x, y)."""
    if kind == "circle":
        return tag("circle", cx=x, cy=y, r=r, class_="mark")
    if kind in ("plus", "cross"):
        turn = 0.0 if kind == "plus" else math.pi / 4
        ends = [(r * 1.25 * math.cos(a + turn), r * 1.25 * math.sin(a + turn)) for a in _QUARTERS]
        d = "".join(f"M{x:.1f} {y:.1f}l{dx:.1f} {dy:.1f}" for dx, dy in ends)
        return tag("path", d=d, class_="stroke-mark")
    sides, start, scale = _SHAPES[kind]
    corners = [
        (
            x + r * scale * math.cos(start + 2 * math.pi * k / sides),
            y + r * scale * math.sin(start + 2 * math.pi * k / sides),
        )
        for k in range(sides)
    ]
    d = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in corners) + "Z"
    return tag("path", d=d, class_="mark")


_QUARTERS = [k * math.pi / 2 for k in range(4)]
_SHAPES = {  # number of corners, angle of the first, size
    "square": (4, math.pi / 4, 1.3),
    "diamond": (4, 0.0, 1.4),
    "triangle": (3, -math.pi / 2, 1.45),
    "down": (3, math.pi / 2, 1.45),
}


def sample(found: Style, colour: str, *, marks: bool = True) -> Markup:
    """A short piece of a curve, for legends."""
    return tag(
        "svg",
        tag("path", d="M1 7H31", class_="line", stroke_dasharray=dash(found)),
        marker(found.marker, 16, 7) if marks else "",
        viewBox="0 0 32 14",
        width=32,
        height=14,
        class_="sample",
        aria_hidden="true",
        style=f"color:{colour}",
    )


@dataclass(frozen=True)
class Frame:
    """A plot area and its scales."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float = 560
    height: float = 320
    left: float = 46
    top: float = 38
    right: float = 16
    bottom: float = 48

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where (x, y) lies."""
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1.0)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1.0)
        return (
            self.left + across * (self.width - self.left - self.right),
            self.height - self.bottom - up * (self.height - self.top - self.bottom),
        )

    def axes(
        self, x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str
    ) -> Markup:
        """Grid lines with numbers, and both labels; the upright one lies above the axis."""
        edge, base = self.width - self.right, self.height - self.bottom
        digits = max((_digits(t) for t in y_ticks), default=0)
        parts = []
        for t in y_ticks:
            y = self.at(self.x[0], t)[1]
            kind = "axis" if t == y_ticks[0] else "grid"
            parts.append(tag("path", d=f"M{self.left:g} {y:.1f}H{edge:g}", class_=kind))
            text = f"{t:.{digits}f}"
            parts.append(
                tag(
                    "text",
                    text,
                    x=self.left - 8,
                    y=y,
                    class_="tick",
                    text_anchor="end",
                    dominant_baseline="central",
                )
            )
        for t in x_ticks:
            x = self.at(t, self.y[0])[0]
            parts.append(tag("path", d=f"M{x:.1f} {base:g}v4", class_="axis"))
            parts.append(
                tag("text", f"{t:g}", x=x, y=base + 18, class_="tick", text_anchor="middle")
            )
        parts.append(tag("text", y_label, x=4, y=14, class_="label"))
        parts.append(
            tag(
                "text",
                x_label,
                x=(self.left + edge) / 2,
                y=self.height - 8,
                class_="label",
                text_anchor="middle",
            )
        )
        return join(parts)


def _digits(value: float) -> int:
    return next((d for d in range(4) if abs(value - round(value, d)) < 1e-9), 4)


def chart(
    *children: object, width: float, height: float, label: str, kind: str, most: float | None = None
) -> Markup:
    """A whole drawing with its accessible name; it is shown at most `most` times its size."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {width:g} {height:g}",
        class_=f"chart {kind}",
        role="img",
        aria_label=label,
        style=None if most is None else f"max-width:{most * width:.0f}px",
    )
