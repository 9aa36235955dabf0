"""How charts look, and how vl-convert draws them: as files, and as SVG that follows the page.

Curves differ in colour, dashes and markers together, so that grey is enough. The colours of curves
are those of Okabe and Ito, which people with any colour vision tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

from conceptors._internal.files import write_atomically
from conceptors.report.measures import CEILINGS
from conceptors.report.text import clean

Drawing = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.FacetChart
FORMATS = ("svg", "pdf", "png")
STEPS = 10  # colours from the first to the last task


def _ramp(*stops: str) -> list[str]:
    """`STEPS` colours from the first stop to the last."""
    points = [[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in stops]
    found = []
    for k in range(STEPS):
        place = k / (STEPS - 1) * (len(points) - 1)
        i = min(int(place), len(points) - 2)
        mixed = (a + (place - i) * (b - a) for a, b in zip(points[i], points[i + 1]))
        found.append("#" + "".join(f"{round(v):02x}" for v in mixed))
    return found


def _palette(basic: str, curves: str, *stops: str) -> dict[str, str]:
    """Names of colours, which are CSS variables on the page; each colour has one name only."""
    names = ("paper", "ink", "muted", "rule", "grid", "heat", "on-heat")
    found = dict(zip(names, basic.split()))
    found |= {f"s{k}": colour for k, colour in enumerate(curves.split())}
    return found | {f"t{k}": colour for k, colour in enumerate(_ramp(*stops))}


LIGHT = _palette(
    "#ffffff #1a1d21 #59626e #dfe3e8 #e9ecf0 #0b4c96 #fffffe",
    "#0072b2 #d55e00 #008c66 #b85a8c #b87d00 #2f92cd #8c564b #5f6670",
    *("#d9a300", "#4f9d5b", "#1f7a92", "#2b3178"),
)
DARK = _palette(
    "#14171c #e8eaed #9aa4b1 #2c323b #262c35 #8cc6ff #0c1a29",
    "#5aaeea #f08a45 #35c294 #e39ac2 #f1bb45 #93d2f7 #c99a8b #a7b0bb",
    *("#f3d250", "#74c476", "#3fa7c4", "#8f9bf0"),
)
DASHES = ([1, 0], [6, 2.5], [2, 2], [8, 2.5, 2, 2.5], [1, 3.5])  # the last: ceilings
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
_VARIABLES = {colour: name for name, colour in LIGHT.items()}
_TIP = re.compile(
    r'<path aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[^"]*"([^>]*)/>'
)
_CYCLE = 7  # colours of curves; the eighth is of ceilings
_CONFIG: dict[str, Any] = {
    "background": LIGHT["paper"],
    "font": "Helvetica Neue, Arial, Liberation Sans, sans-serif",
    "view": {"stroke": None},
    "concat": {"spacing": 36},
    "title": {"anchor": "start", "fontSize": 13, "fontWeight": 600, "color": LIGHT["ink"]},
    "axis": {
        "labelColor": LIGHT["muted"],
        "titleColor": LIGHT["muted"],
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "gridColor": LIGHT["grid"],
        "domainColor": LIGHT["muted"],
        "tickColor": LIGHT["muted"],
        "labelAngle": 0,
    },
    "legend": {
        "orient": "bottom",
        "labelColor": LIGHT["ink"],
        "titleColor": LIGHT["muted"],
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 190,
        "symbolLimit": 0,
        "symbolOpacity": 1,
        "symbolSize": 100,
        "symbolStrokeWidth": 0,  # the dashes of the curve would fray the marker's outline
        "rowPadding": 4,
        "columnPadding": 26,
    },
}


@dataclass(frozen=True)
class Look:
    """A name of a colour, dashes and a marker."""

    colour: str
    dash: int
    shape: str


def look(k: int) -> Look:
    """The look of the k-th curve; the first 28 differ."""
    turn, place = divmod(k, _CYCLE)
    return Look(f"s{place}", (place + turn) % (len(DASHES) - 1), SHAPES[place])


def method_looks(names: Sequence[str]) -> list[Look]:
    """One look per method: ceilings in grey dots, the others in turn."""
    rest = [name for name in names if name not in CEILINGS]
    grey = Look("s7", len(DASHES) - 1, "triangle-left")
    return [grey if name in CEILINGS else look(rest.index(name)) for name in names]


def task_looks(n: int) -> list[Look]:
    """One look per task, the colours in the order of the tasks."""
    last = max(n - 1, 1)
    places = [round(k * (STEPS - 1) / last) % STEPS for k in range(n)]
    return [Look(f"t{place}", 0, SHAPES[k % len(SHAPES)]) for k, place in enumerate(places)]


def svg(chart: Drawing) -> str:
    """The chart as SVG with the colours of the light theme, the same for the same chart."""
    version = "_".join(alt.SCHEMA_VERSION.split(".")[:2])
    spec = chart.to_dict() | {"config": _CONFIG}
    drawn: str = vl_convert.vegalite_to_svg(spec, vl_version=version)
    return drawn


def page_svg(chart: Drawing, label: str) -> Markup:
    """The chart for the page: its colours are CSS variables, its marks have titles."""
    text = re.sub(
        r'(fill|stroke)="(#[0-9a-f]{6})"',
        lambda m: f'{m[1]}="var(--{_VARIABLES[m[2]]})"' if m[2] in _VARIABLES else m[0],
        svg(chart),
    )
    text = re.sub(r' (xmlns[:a-z]*|version)="[^"]*"', "", text)
    text = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", text)
    text = _TIP.sub(r'<path class="tip"\2><title>\1</title></path>', text)
    head = f'<svg class="chart" role="img" aria-label="{escape(clean(label))}"'
    return Markup(re.sub(r'^<svg class="marks" width="[\d.]+" height="[\d.]+"', head, text))


def save(chart: Drawing, stem: Path) -> list[Path]:
    """The chart as `stem` with each of the endings."""
    return [draw(chart, stem.with_name(f"{stem.name}.{ending}")) for ending in FORMATS]


def draw(chart: Drawing, path: Path) -> Path:
    """The chart as a file, whole or not at all; its ending says of which kind.

    Raises:
        ValueError: another ending than .svg, .pdf or .png.
    """
    ending = path.suffix.lower().lstrip(".")
    if ending not in FORMATS:
        raise ValueError(f"{path} must end in one of .{', .'.join(FORMATS)}")
    drawn = svg(chart)
    content = drawn.encode()
    if ending == "pdf":
        content = vl_convert.svg_to_pdf(drawn)
    if ending == "png":
        content = vl_convert.svg_to_png(drawn, scale=2)
    return write_file(path, content)


def write_file(path: Path, content: bytes) -> Path:
    """Write a file whole or not at all, and the folder it is in where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path
