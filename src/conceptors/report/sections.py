"""The sections of the page, which are also the figures; sections without numbers have no charts."""

from pathlib import Path
from typing import Any

from conceptors.report import charts, data
from conceptors.report.panels import Section, curve_panel, matrix_panel
from conceptors.report.text import clean, labels
from conceptors.report.theme import look, method_looks, save, task_looks

LEARNED = "number of tasks learned"
MEASURE = "accuracy on test data (%)"


def sections(results: dict[str, Any]) -> list[Section]:
    """Return all sections that have a chart."""
    builders = (accuracy, forgetting, matrices, quota, spectra, similarity)
    return [section for section in (build(results) for build in builders) if section.panels]


def write(results: dict[str, Any], folder: Path) -> list[Path]:
    """Write every section as one figure to `folder`, as SVG, PDF and PNG."""
    files = []
    for section in sections(clean(results)):
        titles = labels([panel.title for panel in section.panels], 60)
        named = list(zip(titles, (panel.chart for panel in section.panels)))
        files += save(charts.joined(named, 3 if len(named) > 4 else 2), folder / section.name)
    return files


def accuracy(results: dict[str, Any]) -> Section:
    """Accuracy over the tasks learned so far."""
    means = data.over_seeds(data.accuracy_so_far(results), "method", "after")
    means = means.rename(columns={"method": "series", "after": "x"})
    looks, titles = method_looks(data.methods(results)), ("after task", LEARNED, MEASURE, " %")
    panel = curve_panel("Over tasks", means, looks, *titles)
    return Section("accuracy", [panel], {"bands": bool(means.sd.notna().any())})


def forgetting(results: dict[str, Any]) -> Section:
    """The accuracy of each task over time: one line per task, one panel per method."""
    means = data.over_seeds(data.pairs(results), "method", "task", "after")
    means = means[means.after >= means.task].rename(columns={"after": "x"})
    titles = ("after task", LEARNED, "accuracy on the task (%)", " %")
    panels = []
    for method, frame in means.groupby("method", sort=False):
        tasks = frame.task.unique()
        shown = frame[frame.task.isin(tasks[data.evenly(len(tasks), 10)])]
        curves = shown.assign(series=[f"task {task}" for task in shown.task])
        if frame.x.nunique() > 1:  # more than one task
            looks = task_looks(curves.series.nunique())
            panels.append(curve_panel(method, curves, looks, *titles, digits=1, domain=(0, 100)))
    return Section("forgetting", panels)


def matrices(results: dict[str, Any]) -> Section:
    """Accuracy on every task after every task."""
    names, words = data.task_names(results), ("after task", "tested on task")
    means = data.over_seeds(data.pairs(results), "method", "after", "task")
    low = min(means.value[means.task <= means.after].min(), 90.0) // 10 * 10
    panels = [
        matrix_panel(method, frame, (low, 100.0), words, names, " %")
        for method, frame in means.groupby("method", sort=False)
    ]
    return Section("matrices", panels, {"low": low, "tasks": len(names)})


def quota(results: dict[str, Any]) -> Section:
    """The protected share of every layer, one panel per method."""
    means = data.over_seeds(data.quotas(results), "method", "layer", "after")
    means = means.rename(columns={"layer": "series", "after": "x"})
    panels = []
    for method, frame in means.groupby("method", sort=False):
        looks = [look(k) for k in range(frame.series.nunique())]
        titles = ("after task", LEARNED, "quota of A (protected share)")
        panels.append(curve_panel(method, frame, looks, *titles, digits=3, domain=(0, 1)))
    return Section("quota", panels)


def spectra(results: dict[str, Any]) -> Section:
    """Singular values of A after each task, one panel per layer."""
    means = data.over_seeds(data.spectra(results), "method", "layer", "after", "index")
    means["series"] = [f"task {after}" for after in means.after]
    means = means.drop(columns="sd").rename(columns={"index": "x"})
    titles = ("index", "index of the singular value", "singular value of A")
    panels = []
    for (method, layer), frame in means.groupby(["method", "layer"], sort=False):
        looks, title = task_looks(frame.series.nunique()), f"{method}, {layer}"
        panels.append(curve_panel(title, frame, looks, *titles, digits=3, domain=(0, 1)))
    return Section("spectra", panels)


def similarity(results: dict[str, Any]) -> Section:
    """Similarity between the conceptors of the tasks."""
    means = data.over_seeds(data.pairs(results, "similarity"), "method", "after", "task")
    names = data.task_names(results)
    panels = [
        matrix_panel(method, frame, (0.0, 1.0), ("task", "task"), names)
        for method, frame in means.groupby("method", sort=False)
    ]
    return Section("similarity", panels)
