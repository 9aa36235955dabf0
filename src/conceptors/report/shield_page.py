"""A page about one shield: how full each layer is, what passes, and what to do."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from conceptors import Conceptor, Shield, similarity
from conceptors.report import sections
from conceptors.report.data import evenly
from conceptors.report.page import fill
from conceptors.report.panels import Section, curve_panel
from conceptors.report.text import shorten
from conceptors.report.theme import look

FULL = 0.9  # layers above this quota are full


def render(
    shield: Shield, title: str, accuracy: Sequence[Sequence[float]], stuck: Sequence[str]
) -> str:
    """Return the page; see `Shield.report`. In `stuck` layers hardly any gradient passes."""
    layers = shield.explain()
    all_sections = [_accuracy(accuracy), _spectra(shield), _similarity(shield.tasks())]
    return fill(
        "shield.html",
        title=title,
        tasks=shield.n_tasks,
        advice=advice(layers, stuck),
        layers=layers,
        sections=[section for section in all_sections if section.panels],
    )


def advice(layers: Sequence[Any], stuck: Sequence[str]) -> dict[str, str]:
    """Name the layers that need each kind of attention; `layers` come from `Shield.explain`."""
    large = [row for row in layers if row.dim > 2]  # a channel of a norm layer has two
    kinds = {
        "idle": [row.layer for row in large if row.done.startswith("no guarded optimizer")],
        "loose": [row.layer for row in layers if row.done.startswith("not protected")],
        "stuck": stuck,
        "full": [row.layer for row in large if row.quota > FULL],
    }
    more = {kind: f" and {len(n) - 4} more" if len(n) > 4 else "" for kind, n in kinds.items()}
    return {
        kind: ", ".join(shorten(name, 40) for name in names[:4]) + more[kind]
        for kind, names in kinds.items()
    }


def _accuracy(rows: Sequence[Sequence[float]]) -> Section:
    if not all(0 <= value <= 100 for row in rows for value in row):
        raise ValueError("accuracy must be rows of percentages in [0, 100], one row per task")
    runs = [{"method": "All tasks", "seed": 0, "accuracy": rows}]
    return sections.matrices({"runs": runs}) if rows else Section("matrices", [])


def _spectra(shield: Shield) -> Section:
    rows = []
    for name, values in shield.spectra().items():
        if (dim := values.shape[-1]) > 2:
            mean = values.double().reshape(-1, dim).mean(0).tolist()
            rows += [(name, (k + 1) / dim, mean[k]) for k in evenly(dim, 160)]
    frame = pd.DataFrame(rows, columns=["series", "x", "value"])
    names, panels = list(frame.series.unique()), []
    for at in range(0, len(names), 8):
        shown = names[at : at + 8]
        title, part = f"layers {at + 1} to {at + len(shown)}", frame[frame.series.isin(shown)]
        looks = [look(k) for k in range(len(shown))]
        titles = ("share", "share of the directions", "singular value of A")
        panels.append(curve_panel(title, part, looks, *titles, digits=3, domain=(0, 1)))
    return Section("spectra", panels)


def _similarity(tasks: list[dict[str, Conceptor]]) -> Section:
    if len(tasks) < 2:
        return Section("similarity", [])
    runs = []
    for layer, conceptor in tasks[-1].items():
        if conceptor.dim > 2 and all(layer in task for task in tasks):
            table = [[float(similarity(a[layer], b[layer]).mean()) for b in tasks] for a in tasks]
            runs.append({"method": layer, "seed": 0, "similarity": table})
    names = [str(k + 1) for k in range(len(tasks))]
    return sections.similarity({"runs": runs, "task_names": names})
