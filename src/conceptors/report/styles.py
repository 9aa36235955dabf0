"""How curves are told apart: colour, dashes and markers together, so that grey is enough.

The colours are those of Okabe and Ito, which people with any colour vision tell apart. The page
has the same ones as the CSS variables --s0 ... --s7, lighter on a dark ground.
"""

from __future__ import annotations

from dataclasses import dataclass

from conceptors.report.measures import CEILINGS

COLOURS = (
    "#0072b2",  # blue
    "#d55e00",  # vermilion
    "#009e73",  # green
    "#cc79a7",  # purple
    "#e69f00",  # orange
    "#56b4e9",  # sky
    "#8c564b",  # brown
    "#5f6670",  # grey: ceilings
)
DASHES = ((), (6.0, 2.5), (2.0, 2.0), (8.0, 2.5, 2.0, 2.5), (1.0, 3.5))  # the last: ceilings
MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")
_CYCLE = len(COLOURS) - 1
_DASHES = len(DASHES) - 1


@dataclass(frozen=True)
class Style:
    """Indices into COLOURS and DASHES, and the name of a marker."""

    colour: int
    dash: int
    marker: str


def style(k: int) -> Style:
    """The style of the k-th curve; the first 28 differ."""
    turn, place = divmod(k, _CYCLE)
    return Style(place, (place + turn) % _DASHES, MARKERS[place])


def method_styles(names: list[str]) -> dict[str, Style]:
    """A style a method: ceilings in grey dashes, the others in turn."""
    rest = [name for name in names if name not in CEILINGS]
    found = {name: style(k) for k, name in enumerate(rest)}
    grey = Style(_CYCLE, _DASHES, "cross")
    return {name: found.get(name, grey) for name in names}
