"""The charts of the page, each with its legend and its values as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup

from conceptors.report import measures
from conceptors.report.heatmap import CELLS, Look, heat_map
from conceptors.report.linechart import Line, line_chart
from conceptors.report.measures import Array, Band, Matrix
from conceptors.report.scale import milestones, percent_ticks, some, task_ticks, ticks
from conceptors.report.styles import Style, method_styles, style
from conceptors.report.svg import Frame, sample
from conceptors.report.text import count, number, shorten, spread

TENTHS = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@dataclass(frozen=True)
class Item:
    """An entry of a legend."""

    sample: Markup
    name: str
    value: str = ""


@dataclass(frozen=True)
class Table:
    """Values in words: the first cell of a row is its heading."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Panel:
    title: str
    chart: Markup
    legend: list[Item] = field(default_factory=list)
    table: Table | None = None
    group: str = ""
    note: str = ""


def accuracy_panel(results: dict[str, Any]) -> Panel:
    """Accuracy averaged over the tasks seen so far."""
    tasks, names = measures.task_count(results), measures.methods(results)
    bands = {name: measures.seen_so_far(results, name) for name in names}
    styles = method_styles(names)
    lines = [_line(band, styles[name], name, " %", 2) for name, band in bands.items()]
    edges = [v for band in bands.values() for v in _edges(band)]
    y_ticks = percent_ticks(edges)
    frame = Frame(_across(tasks), (y_ticks[0], y_ticks[-1]), width=620, height=340)
    drawn = line_chart(
        lines,
        frame,
        task_ticks(tasks, 12),
        y_ticks,
        "number of tasks learned",
        "accuracy over the tasks seen so far (%)",
        "Accuracy over the tasks seen so far, after each task. "
        + "; ".join(
            f"{shorten(m, 40)} ends at {number(float(b.mean[-1]), 1)} %" for m, b in bands.items()
        ),
    )
    order = sorted(names, key=lambda m: -float(bands[m].mean[-1]))
    legend = [
        Item(_sample(styles[m]), m, f"{number(float(bands[m].mean[-1]), 1)} %") for m in order
    ]
    return Panel("", drawn, legend, _band_table("tasks learned", bands, 2))


def quota_panels(results: dict[str, Any]) -> list[Panel]:
    """The claimed share of every layer, a panel a method."""
    panels = []
    found = {m: measures.quotas(results, m) for m in measures.methods(results)}
    found = {m: bands for m, bands in found.items() if bands}
    width = 620 if len(found) == 1 else 520  # a single chart is shown larger
    for method, bands in found.items():
        tasks = max(len(band.tasks) for band in bands.values())
        styles = {layer: style(k) for k, layer in enumerate(bands)}
        lines = [_line(band, styles[layer], layer, "", 3) for layer, band in bands.items()]
        drawn = line_chart(
            lines,
            Frame(_across(tasks), (0, 1), width, height=310),
            task_ticks(tasks, 10),
            TENTHS,
            "number of tasks learned",
            "quota of A (share of the space)",
            f"Claimed share of each layer, {shorten(method, 60)}. "
            + "; ".join(
                f"{shorten(n, 40)} ends at {float(b.mean[-1]):.2f}" for n, b in bands.items()
            ),
        )
        legend = [Item(_sample(styles[n]), n, f"{float(b.mean[-1]):.2f}") for n, b in bands.items()]
        panels.append(Panel(method, drawn, legend, _band_table("tasks learned", bands, 3)))
    return panels


def spectra_panels(results: dict[str, Any]) -> list[Panel]:
    """Singular values of A after each task, a panel a layer."""
    panels = []
    for method in measures.methods(results):
        for layer, values in measures.spectra(results, method).items():
            quota = measures.claimed(results, method, layer, values)
            shown = [t - 1 for t in milestones(len(values))]
            lines, legend = [], []
            for n, task in enumerate(shown):
                colour = _ramp(n / max(len(shown) - 1, 1))
                look = Style(0, n % 4, "circle")
                s = values[task]
                kept, held = some(len(s), 160), some(min(len(s), 160), 25)
                tips = [
                    f"after task {task + 1}, singular value {kept[i] + 1} of {len(s)}: "
                    f"{s[kept[i]]:.3f}"
                    for i in held
                ]
                lines.append(
                    Line(
                        [k + 1 for k in kept],
                        [float(s[k]) for k in kept],
                        tips,
                        look,
                        colour,
                        marks=False,
                        held=held,
                    )
                )
                legend.append(
                    Item(
                        sample(look, colour, marks=False),
                        f"after task {task + 1}",
                        f"{quota[task]:.2f}",
                    )
                )
            size = max(2, *(len(s) for s in values))
            x_ticks = [t for t in ticks(0, size, 8) if 1 <= t <= size and t == int(t)] or [1, size]
            drawn = line_chart(
                lines,
                Frame((1, size), (0, 1), width=520, height=300),
                x_ticks,
                TENTHS,
                "index of the singular value, largest first",
                "singular value of A",
                f"Singular values of A, {shorten(method, 60)}, layer {shorten(layer, 60)}. "
                f"The quota grows from {quota[0]:.2f} to {quota[-1]:.2f} over "
                f"{count(len(values), 'task')}",
            )
            panels.append(Panel(layer, drawn, legend, group=method))
    return panels


def matrix_panels(results: dict[str, Any]) -> tuple[list[Panel], float]:
    """Accuracy on every task after every task; where the colour scale starts."""
    names, tasks = measures.methods(results), measures.task_names(results)
    found = [measures.accuracy_matrix(results, name) for name in names]
    low = measures.floor_of(found)
    panels = []
    for k, (name, matrix) in enumerate(zip(names, found)):
        together = len(matrix.mean) < len(tasks)
        last = matrix.mean[-1]
        look = Look(
            low,
            100.0,
            2,
            " %",
            "after all tasks" if together else "after task",
            "tested on task",
            f"Accuracy matrix of {shorten(name, 60)}. After the last task the accuracies reach "
            f"from {number(float(np.nanmin(last)), 1)} to {number(float(np.nanmax(last)), 1)} %",
        )
        drawn = heat_map(matrix, look, tasks, ~measures.learned(matrix.mean), f"matrix-{k}")
        heads = [f"task {j + 1}" for j in range(len(tasks))]
        first = ["after all tasks"] if together else [f"after {h}" for h in heads]
        panels.append(Panel(name, drawn, table=_matrix_table(matrix, heads, first, 2)))
    return panels, low


def similarity_panels(results: dict[str, Any]) -> list[Panel]:
    """Similarity between the conceptors of the tasks."""
    panels = []
    for k, (name, matrix) in enumerate(measures.similarities(results).items()):
        size = len(matrix.mean)
        names = measures.task_names(results)
        names = names if len(names) == size else [str(j + 1) for j in range(size)]
        off = matrix.mean[~np.eye(size, dtype=bool)]
        between = f"Between different tasks: {_range(off)}." if size > 1 else ""
        look = Look(
            0.0,
            1.0,
            3,
            "",
            "task",
            "task",
            f"Similarity between tasks, {shorten(name, 60)}. {between}",
        )
        none = np.zeros(matrix.mean.shape, dtype=bool)
        drawn = heat_map(matrix, look, names, none, f"similarity-{k}")
        heads = [f"task {j + 1}" for j in range(size)]
        table = _matrix_table(matrix, heads, heads, 3)
        panels.append(Panel(name, drawn, table=table, note=between))
    return panels


def _line(band: Band, found: Style, name: str, unit: str, digits: int) -> Line:
    sds: Sequence[float | None] = [None] * len(band.tasks)
    if band.sd is not None:
        sds = [float(s) for s in band.sd]
    tips = [
        f"{shorten(name, 80)}, after {count(t, 'task')}: {spread(float(m), s, digits)}{unit}"
        for t, m, s in zip(band.tasks, band.mean, sds)
    ]
    return Line(
        band.tasks,
        [float(m) for m in band.mean],
        tips,
        found,
        f"var(--s{found.colour})",
        None if band.sd is None else [float(s) for s in band.sd],
    )


def _edges(band: Band) -> list[float]:
    sd = 0.0 if band.sd is None else band.sd
    return [float(v) for v in (*(band.mean - sd), *(band.mean + sd))]


def _across(tasks: int) -> tuple[float, float]:
    """The range of the axis of tasks, with a little air at both ends where there is room."""
    air = 0.15 if 1 < tasks <= 20 else 0.5
    return 1 - air, tasks + air


def _sample(found: Style) -> Markup:
    return sample(found, f"var(--s{found.colour})")


def _range(values: Array) -> str:
    low, high = number(float(values.min())), number(float(values.max()))
    mean = number(float(values.mean()))
    return mean if low == high else f"{low} to {high}, {mean} on average"


def _ramp(share: float) -> str:
    """A colour between those of the first and the last task: --r0, --r1, --r2, --r3."""
    place = share * 3
    k = min(int(place), 2)
    return f"color-mix(in oklab,var(--r{k + 1}) {100 * (place - k):.0f}%,var(--r{k}))"


def _band_table(first: str, bands: dict[str, Band], digits: int) -> Table:
    most = max(bands.values(), key=lambda band: len(band.tasks)).tasks
    rows = []
    for t in most:
        row = [str(t)]
        for band in bands.values():
            k = band.tasks.index(t) if t in band.tasks else None
            sd = None if band.sd is None or k is None else float(band.sd[k])
            row.append(spread(None if k is None else float(band.mean[k]), sd, digits))
        rows.append(row)
    return Table([first, *bands], rows)


def _matrix_table(matrix: Matrix, heads: list[str], first: list[str], digits: int) -> Table | None:
    """The matrix in numbers, where a page has room for it."""
    if len(heads) > CELLS:
        return None
    rows = [
        [head, *(number(float(v), digits) for v in row)] for head, row in zip(first, matrix.mean)
    ]
    return Table(["", *heads], rows)
