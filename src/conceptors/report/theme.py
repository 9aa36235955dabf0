"""The look of charts, and drawing with vl-convert: as files, and as SVG in the page's colours.

Curves differ in colour, dashes and markers, so grey prints stay readable. The colours are those of
Okabe and Ito, which people with any colour vision can distinguish.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import altair as alt
import vl_convert
from markupsafe import Markup

from conceptors._internal.storage import write_atomically
from conceptors.report.data import CEILINGS

Drawing = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.FacetChart
FORMATS = ("svg", "pdf", "png")
_THEME = json.loads((files("conceptors.report") / "templates/theme.json").read_text("utf-8"))
# Colours by name, which are CSS variables on the page: s0 to s7 for curves (s7 for ceilings), t0 to
# t9 from the first task to the last.
LIGHT: dict[str, str] = _THEME["light"]
DARK: dict[str, str] = _THEME["dark"]
_CONFIG = json.loads(Template(json.dumps(_THEME["charts"])).substitute(LIGHT))
DASHES = ([1, 0], [6, 2.5], [2, 2], [8, 2.5, 2, 2.5], [1, 3.5])  # the last: ceilings
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right")
_VARIABLES = {colour: name for name, colour in LIGHT.items()}
_TIP = re.compile(
    r'<path aria-label="([^"]*)" role="graphics-symbol" aria-roledescription="[^"]*"([^>]*)/>'
)


@dataclass(frozen=True)
class Look:
    """The name of a colour, the number of a dash pattern, and a marker."""

    colour: str
    dash: int
    shape: str


def look(k: int) -> Look:
    """Return the look of the k-th curve; the first 28 differ."""
    turn, place = divmod(k, len(SHAPES))
    return Look(f"s{place}", (place + turn) % (len(DASHES) - 1), SHAPES[place])


def method_looks(names: Sequence[str]) -> list[Look]:
    """Return one look per method: dotted grey for ceilings, the others in turn."""
    competitors = [name for name in names if name not in CEILINGS]
    grey = Look("s7", len(DASHES) - 1, "triangle-left")
    return [grey if name in CEILINGS else look(competitors.index(name)) for name in names]


def task_looks(n: int) -> list[Look]:
    """Return one look per task, with colours in the order of the tasks."""
    steps = [round(9 * k / max(n - 1, 1)) for k in range(n)]
    return [Look(f"t{step}", 0, SHAPES[k % len(SHAPES)]) for k, step in enumerate(steps)]


def svg(chart: Drawing) -> str:
    """Draw the chart as SVG in the light theme; equal charts give equal text."""
    version = "_".join(alt.SCHEMA_VERSION.split(".")[:2])
    spec = chart.to_dict() | {"config": _CONFIG}
    text: str = vl_convert.vegalite_to_svg(spec, vl_version=version)
    return text


def page_svg(chart: Drawing, label: str) -> Markup:
    """Draw the chart for the page: colours become CSS variables, and marks get titles."""
    text = re.sub(
        r'(fill|stroke)="(#[0-9a-f]{6})"',
        lambda m: f'{m[1]}="var(--{_VARIABLES[m[2]]})"' if m[2] in _VARIABLES else m[0],
        svg(chart),
    )
    text = re.sub(r' (xmlns[:a-z]*|version)="[^"]*"', "", text)
    text = re.sub(r"\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", text)
    text = _TIP.sub(r'<path class="tip"\2><title>\1</title></path>', text)
    head = f'<svg class="chart" role="img" aria-label="{escape(label)}"'
    return Markup(re.sub(r'^<svg class="marks" width="[\d.]+" height="[\d.]+"', head, text))


def save(chart: Drawing, stem: Path) -> list[Path]:
    """Draw the chart once and write it as `stem` with each of the endings in `FORMATS`."""
    text = svg(chart)
    convert: dict[str, Callable[[], bytes]] = {
        "svg": text.encode,
        "pdf": lambda: vl_convert.svg_to_pdf(text),
        "png": lambda: vl_convert.svg_to_png(text, scale=2),
    }
    return [
        write_file(stem.with_name(f"{stem.name}.{ending}"), convert[ending]()) for ending in FORMATS
    ]


def write_file(path: Path, content: bytes) -> Path:
    """Write a file atomically."""
    write_atomically(path, content)
    return path
