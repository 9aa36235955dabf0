"""Which charts the results have numbers for: the sections of the page, and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conceptors.experiments.results import check_results
from conceptors.report import charts, measures
from conceptors.report.charts import Axes, Curve
from conceptors.report.measures import Band, Matrix
from conceptors.report.text import MISSING, clean, number, shorten, spread
from conceptors.report.theme import Drawing, look, method_looks, save, task_looks

LEARNED = "number of tasks learned"
MEASURE = "accuracy on test images (%)"


@dataclass(frozen=True)
class Table:
    """Values in words: the first cell of a row is its heading."""

    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Panel:
    """A chart, what it says in a sentence, and its values."""

    title: str
    chart: Drawing
    label: str
    table: Table | None = None


@dataclass(frozen=True)
class Section:
    """Charts that answer one question; `name` is also the name of the files."""

    name: str
    title: str
    about: str
    panels: list[Panel]
    columns: int = 2
    folded: bool = False  # shown only on request


def sections(results: dict[str, Any]) -> list[Section]:
    """All sections that have a chart."""
    made = (accuracy, forgetting, matrices, learning, loss, quota, spectra, similarity)
    return [section for section in (make(results) for make in made) if section.panels]


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Every section as one figure in `folder`, as SVG, PDF and PNG."""
    check_results(results)
    written = []
    for section in sections(results):
        panels = [(shorten(p.title, 60), p.chart) for p in section.panels]
        written += save(charts.joined(panels, section.columns), folder / section.name)
    return written


def accuracy(results: dict[str, Any]) -> Section:
    """Accuracy over the tasks seen so far, and that of each seed at the end."""
    names = measures.methods(results)
    bands = {name: measures.seen_so_far(results, name) for name in names}
    curves = {m: charts.band_curve(b, m, " %", 2, 100) for m, b in bands.items()}
    axes = Axes(LEARNED, MEASURE, whole=True)
    ends = "; ".join(
        f"{shorten(m, 40)} ends at {number(b.mean[-1], 1)} %" for m, b in bands.items()
    )
    about = "On the test images of all tasks seen so far, after each task."
    if any(band.sd is not None for band in bands.values()):
        about += " Bands and thin lines are one standard deviation over seeds."
    panels = [
        Panel(
            "Over tasks",
            charts.over_tasks(curves, method_looks(names), axes),
            f"Accuracy over the tasks seen so far. {ends}",
            _band_table(bands, 2),
        ),
        seeds_panel({"": results}),
    ]
    return Section("accuracy", "Accuracy over tasks", about, panels)


def seeds_panel(found: dict[str, dict[str, Any]]) -> Panel:
    """Each seed's accuracy after the last task, for one or several results."""
    values, published, looks = {}, {}, {}
    for origin, results in found.items():
        names = measures.methods(results)
        names.sort(key=lambda m, given=results["summary"]: -given[m]["mean"])  # type: ignore[misc]
        shown = dict(zip(measures.methods(results), method_looks(measures.methods(results))))
        for name in names:
            full = f"{name}, {origin}" if origin else name
            values[full] = measures.final_accuracies(results, name)
            looks[full] = shown[name]
        for name, entry in (results.get("reference") or {}).items():
            published[f"{name}, {origin}" if origin else name] = float(entry["mean"])
    several = any(len(runs) > 1 for runs in values.values())
    title = "Each seed after the last task" if several else "After the last task"
    title += " (diamonds: published)" if published else ""
    rows = [
        [name, *(number(v) for _, v in runs)] for name, runs in values.items() if len(runs) <= 20
    ]
    most = max((len(row) for row in rows), default=1)
    head = ["", *(f"seed {k + 1}" for k in range(most - 1))]
    table = Table(head, [row + [MISSING] * (most - len(row)) for row in rows]) if rows else None
    chart = charts.seeds(values, published, looks, MEASURE)
    return Panel(title, chart, "Accuracy of each seed after the last task", table)


def forgetting(results: dict[str, Any]) -> Section:
    """What becomes of each task: one line per task, one panel per method."""
    panels = []
    tasks = measures.task_count(results)
    for method in measures.methods(results) if tasks > 1 else []:
        found = measures.each_task(results, method)
        if all(len(band.tasks) == 1 for band in found.values()):
            continue  # learned everything at once
        shown = measures.milestones(tasks)
        bands = {f"task {t}": found[t] for t in shown}
        curves = {m: charts.band_curve(b, m, " %", 2, 100) for m, b in bands.items()}
        axes = Axes(LEARNED, "accuracy on the task (%)", (0, 100), whole=True)
        first = found[1]
        label = (
            f"Accuracy of each task, {shorten(method, 60)}. Task 1 goes from "
            f"{number(first.mean[0], 1)} to {number(first.mean[-1], 1)} %"
        )
        chart = charts.over_tasks(curves, task_looks(len(shown)), axes)
        panels.append(Panel(method, chart, label, _band_table(bands, 2)))
    about = (
        "The accuracy of every task, from when it was learned to the end. A line that stays "
        "level is a task that is kept."
    )
    return Section("forgetting", "Forgetting", about, panels)


def matrices(results: dict[str, Any]) -> Section:
    """Accuracy on every task after every task."""
    names, tasks = measures.methods(results), measures.task_names(results)
    found = [measures.accuracy_matrix(results, name) for name in names]
    low = measures.floor_of(found)
    panels = []
    for name, matrix in zip(names, found):
        together = len(matrix.mean) < len(tasks)
        last = matrix.mean[-1]
        words = ("after all tasks" if together else "after task", "tested on task", " %")
        label = (
            f"Accuracy matrix of {shorten(name, 60)}. After the last task the accuracies reach "
            f"from {number(float(np.nanmin(last)), 1)} to {number(float(np.nanmax(last)), 1)} %"
        )
        hidden = ~measures.learned(matrix.mean)
        chart = charts.heat(matrix, (low, 100.0), words, tasks, hidden)
        heads = [f"task {j + 1}" for j in range(len(tasks))]
        first = ["after all tasks"] if together else [f"after {h}" for h in heads]
        panels.append(Panel(name, chart, label, _matrix_table(matrix, heads, first, 2)))
    about = (
        "Rows: after learning a task. Columns: the task that is tested. Reading a column downwards "
        f"shows what becomes of a task. White is {low:g} %, the darkest 100 %; cells above the "
        f"diagonal are of tasks not learned yet.{_thinned(len(tasks))}"
    )
    columns = 3 if len(names) != 4 and len(names) > 2 else 2
    return Section("matrices", "Accuracy matrices", about, panels, columns)


def learning(results: dict[str, Any]) -> Section:
    """Validation accuracy while each task is learned."""
    panels = _learning(
        results, "validation", Axes("step within the task", "validation accuracy (%)")
    )
    about = (
        "Within tasks: accuracy on the validation images of the task that is being learned, "
        "mean over seeds. Where later tasks learn more slowly or end lower, room is getting "
        "scarce."
    )
    return Section("learning", "Learning curves", about, panels)


def loss(results: dict[str, Any]) -> Section:
    """Training loss while each task is learned."""
    panels = _learning(results, "loss", Axes("step within the task", "training loss", log=True))
    about = "Loss on the last training batch before each check, mean over seeds."
    return Section("loss", "Training loss", about, panels, folded=True)


def quota(results: dict[str, Any]) -> Section:
    """The claimed share of every layer, one panel per method."""
    panels = []
    for method in measures.methods(results):
        bands = measures.quotas(results, method)
        if bands:
            curves = {n: charts.band_curve(b, n, "", 3, 1) for n, b in bands.items()}
            axes = Axes(LEARNED, "quota of A (share of the space)", (0, 1), whole=True)
            ends = "; ".join(f"{shorten(n, 40)} ends at {b.mean[-1]:.2f}" for n, b in bands.items())
            chart = charts.over_tasks(curves, [look(k) for k in range(len(bands))], axes)
            label = f"Claimed share of each layer, {shorten(method, 60)}. {ends}"
            panels.append(Panel(method, chart, label, _band_table(bands, 3)))
    about = (
        "The quota of A, the conceptor of all tasks so far: which share of a layer’s input "
        "space they claim. At 1 nothing is free for another task."
    )
    return Section("quota", "Memory used", about, panels)


def spectra(results: dict[str, Any]) -> Section:
    """Singular values of A after each task, one panel per layer."""
    panels = []
    for method in measures.methods(results):
        for layer, values in measures.spectra(results, method).items():
            quotas = measures.claimed(results, method, layer, values)
            curves = {}
            for task in measures.milestones(len(values)):
                s = values[task - 1]
                kept = measures.some(len(s), 160)
                name = f"task {task}: quota {quotas[task - 1]:.2f}"
                tips = [f"after task {task}, singular value {k + 1}: {s[k]:.3f}" for k in kept]
                curves[name] = Curve([k + 1 for k in kept], [float(s[k]) for k in kept], tips)
            axes = Axes("index of the singular value", "singular value of A", (0, 1), whole=True)
            chart = charts.lines(curves, task_looks(len(curves)), axes, marks=9)
            label = (
                f"Singular values of A, {shorten(method, 60)}, layer {shorten(layer, 60)}. "
                f"The quota grows from {quotas[0]:.2f} to {quotas[-1]:.2f}"
            )
            panels.append(Panel(f"{method}, {layer}", chart, label))
    about = (
        "Singular values of A after each task, the largest first. A value of 1 is a direction"
        " that is protected, 0 one that is free; the quota is their mean."
    )
    return Section("spectra", "Spectra", about, panels)


def similarity(results: dict[str, Any]) -> Section:
    """Similarity between the conceptors of the tasks."""
    panels = []
    for name, matrix in measures.similarities(results).items():
        size = len(matrix.mean)
        names = measures.task_names(results)
        names = names if len(names) == size else [str(j + 1) for j in range(size)]
        off = matrix.mean[~np.eye(size, dtype=bool)]
        between = f"; {number(float(off.mean()))} on average between tasks" if size > 1 else ""
        none = np.zeros(matrix.mean.shape, dtype=bool)
        chart = charts.heat(matrix, (0.0, 1.0), ("task", "task", ""), names, none)
        heads = [f"task {j + 1}" for j in range(size)]
        table = _matrix_table(matrix, heads, heads, 3)
        label = f"Similarity between tasks, {shorten(name, 60)}{between}"
        panels.append(Panel(f"{name}{between}", chart, label, table))
    about = (
        "ρ of the conceptors of two tasks: 0 (white) for orthogonal spaces, 1 (darkest) for "
        "the same. The more alike two tasks’ inputs are, the less room is left to learn the "
        "second without touching the first."
    )
    return Section("similarity", "Similarity", about, panels, 3)


def _learning(results: dict[str, Any], part: str, axes: Axes) -> list[Panel]:
    """One panel per method, one line per task."""
    panels = []
    unit, digits = (" %", 1) if part == "validation" else ("", 4)
    for method in measures.methods(results):
        found = measures.learning(results, method, part)
        if axes.log:
            found = {t: {k: v for k, v in s.items() if v > 0} for t, s in found.items()}
        found = {t: s for t, s in found.items() if s}
        if not any(len(steps) > 1 for steps in found.values()):
            continue
        numbers = list(found)
        shown = [numbers[k - 1] for k in measures.milestones(len(numbers))]
        curves = {
            f"task {t}": Curve(
                list(found[t]),
                list(found[t].values()),
                [f"task {t}, step {k:,}: {number(v, digits)}{unit}" for k, v in found[t].items()],
            )
            for t in shown
        }
        chart = charts.lines(curves, task_looks(len(shown)), axes)
        rows = [[str(t), number(list(found[t].values())[-1], digits)] for t in found]
        label = f"{clean(axes.y)} while each task is learned, {shorten(method, 60)}"
        panels.append(Panel(method, chart, label, Table(["task", f"at the end{unit}"], rows)))
    return panels


def _band_table(bands: dict[str, Band], digits: int) -> Table:
    tasks: Sequence[int] = sorted({t for band in bands.values() for t in band.tasks})
    rows = []
    for t in tasks:
        row = [str(t)]
        for band in bands.values():
            k = band.tasks.index(t) if t in band.tasks else None
            sd = None if band.sd is None or k is None else float(band.sd[k])
            row.append(spread(None if k is None else float(band.mean[k]), sd, digits))
        rows.append(row)
    return Table(["tasks learned", *bands], rows)


def _matrix_table(matrix: Matrix, heads: list[str], first: list[str], digits: int) -> Table | None:
    """The matrix in numbers, where a page has room for it."""
    if len(heads) > charts.CELLS:
        return None
    rows = [
        [head, *(number(float(v), digits) for v in row)] for head, row in zip(first, matrix.mean)
    ]
    return Table(["", *heads], rows)


def _thinned(tasks: int) -> str:
    return f" {charts.MOST} of {tasks} tasks are shown." if tasks > charts.MOST else ""
