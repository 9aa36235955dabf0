"""A page about one shield: how full each layer is, what passes, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from conceptors.report import charts
from conceptors.report.charts import Axes, Curve
from conceptors.report.measures import Array, Matrix, some
from conceptors.report.page import fill
from conceptors.report.sections import Panel, Section
from conceptors.report.text import shorten
from conceptors.report.theme import look, write_file
from conceptors.shield.explain import Explanation, LayerRow

FULL, OPEN = 0.9, 0.5  # quotas above which a layer is full, and below which it is open
_DRAWN = 8  # curves in one chart


def write(
    path: Path,
    title: str,
    tasks: int,
    layers: Explanation,
    spectra: Mapping[str, Array],
    similarity: Mapping[str, Array],
    stuck: Sequence[str] = (),
) -> Path:
    """Write the page, whole or not at all.

    Args:
        layers: rows of `Shield.explain`.
        spectra: singular values of what is claimed, by layer, descending.
        similarity: ρ between the tasks `[tasks, tasks]`, by layer, where tasks are kept apart.
        stuck: layers where hardly anything of the current task passes.
    """
    made = [_spectra(spectra), _similarity(similarity)]
    html = fill(
        "shield.html",
        first="advice",
        title=title,
        lede=_lede(tasks, layers),
        advice=advice(tasks, layers, stuck),
        rows=[_cells(row) for row in layers],
        sections=[section for section in made if section.panels],
    )
    return write_file(path, html.encode("utf-8", "replace"))


def advice(tasks: int, layers: Sequence[LayerRow], stuck: Sequence[str] = ()) -> list[str]:
    """What a reader of the table would do next."""
    large = [row for row in layers if row.dim > 2]
    if not tasks:
        return ["Nothing is remembered yet: call shield.remember(data) after each task."]
    found = []
    idle = [row.layer for row in large if row.done.startswith("no guarded optimizer")]
    if idle:
        found.append(
            f"No guarded optimizer steps {_listed(idle)}: if they are trained, guard that "
            f"optimizer with shield.guard(optimizer)."
        )
    loose = [row.layer for row in layers if row.done.startswith("left alone")]
    if loose:
        found.append(
            f"{_listed(loose)} may change and forget: choose unsupported='freeze', or add a rule "
            f"for their layer."
        )
    if stuck:
        found.append(
            f"Hardly anything of this task passes in {_listed(stuck)}. If it does not learn, lower "
            f"the aperture there, begin with wider layers, forget a task, or learn the last layer "
            f"in closed form."
        )
    full = [row.layer for row in large if row.quota > FULL]
    if full:
        found.append(
            f"Little room is left in {_listed(full)}: begin with wider ones, or forget a task "
            f"(with keep_tasks=True)."
        )
    if not found:
        most = max((row.quota for row in large), default=0.0)
        found.append(
            "There is room for further tasks: no layer is more than half full."
            if most < OPEN
            else f"There is room for further tasks; the fullest layer has a quota of {most:.0%}."
        )
    return found


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(shorten(name, 40) for name in names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def _lede(tasks: int, layers: Sequence[LayerRow]) -> str:
    quotas = [row.quota for row in layers if row.dim]
    mean = sum(quotas) / max(1, len(quotas))
    words = "1 task is" if tasks == 1 else f"{tasks} tasks are"
    return f"{words} remembered in {len(quotas)} layers, which are {mean:.0%} full on average."


def _cells(row: LayerRow) -> list[str]:
    passing = "" if row.passing is None else f"{row.passing:.1%}"
    if not row.dim:
        return [row.layer, row.done, "", "", passing]
    return [row.layer, row.done, f"{row.rank} / {row.dim}", f"{row.quota:.1%}", passing]


def _spectra(values: Mapping[str, Array]) -> Section:
    panels = []
    named = list(values.items())
    for at in range(0, len(named), _DRAWN):
        curves = {}
        for name, s in named[at : at + _DRAWN]:
            kept = some(len(s), 160)
            tips = [f"{name}, singular value {k + 1}: {s[k]:.3f}" for k in kept]
            share = [(k + 1) / len(s) for k in kept]
            curves[shorten(name, 30)] = Curve(share, [float(s[k]) for k in kept], tips)
        axes = Axes("share of the directions", "singular value of A", (0, 1))
        chart = charts.lines(curves, [look(k) for k in range(len(curves))], axes, marks=9)
        title = f"layers {at + 1} to {at + len(curves)}"
        panels.append(Panel(title, chart, f"Singular values of A, {title}"))
    about = (
        "Singular values of what is claimed, the largest first: 1 is a direction that is "
        "protected, 0 one that is free."
    )
    return Section("spectra", "Spectra", about, panels)


def _similarity(values: Mapping[str, Array]) -> Section:
    panels = []
    for name, matrix in values.items():
        tasks = [str(k + 1) for k in range(len(matrix))]
        none = np.zeros(matrix.shape, dtype=bool)
        chart = charts.heat(Matrix(matrix, None), (0.0, 1.0), ("task", "task", ""), tasks, none)
        panels.append(Panel(name, chart, f"Similarity between tasks, {shorten(name, 60)}"))
    about = (
        "ρ of the conceptors of two tasks: 0 for orthogonal spaces, 1 for the same. The more "
        "alike, the less room is left to learn the second without touching the first."
    )
    return Section("similarity", "Similarity", about, panels, 3)
