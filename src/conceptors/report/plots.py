"""The figures themselves, drawn by matplotlib for print: readable in grey, axes with units."""

from __future__ import annotations

import math
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from conceptors.report import measures
from conceptors.report.measures import Array, Band
from conceptors.report.printing import WIDTH, line_look, plain
from conceptors.report.scale import milestones, percent_ticks, task_ticks
from conceptors.report.styles import COLOURS, Style, method_styles, style

CELLS = 10  # up to here every cell of a matrix has its number


def accuracy(results: dict[str, Any]) -> Figure:
    """Accuracy averaged over the tasks seen so far, a line a method (the report's figure 1)."""
    figure = Figure(figsize=(WIDTH * 0.76, 3.1))
    axes = figure.subplots()
    tasks, names = measures.task_count(results), measures.methods(results)
    bands = {name: measures.seen_so_far(results, name) for name in names}
    ends = []
    for name, look in method_styles(names).items():
        _band(axes, bands[name], look, plain(name, 24), tasks)
        low, high = _edges(bands[name])
        ends += [*low, *high]
    ticks = percent_ticks(ends)
    axes.set_ylim(ticks[0], ticks[-1])
    axes.set_yticks(ticks)
    axes.grid(axis="y")
    _task_axis(axes, tasks)
    axes.set_ylabel("accuracy over tasks seen so far (%)")
    axes.margins(x=0.04)
    figure.legend(loc="outside right upper", title=_seeds(results), alignment="left")
    return figure


def quotas(results: dict[str, Any]) -> Figure:
    """The share of each layer's space that is claimed, over tasks: a panel a method."""
    found = {m: measures.quotas(results, m) for m in measures.methods(results)}
    found = {m: bands for m, bands in found.items() if bands}
    columns = min(len(found), 2)
    rows = math.ceil(len(found) / columns)
    figure = Figure(figsize=(WIDTH * (0.76 if columns == 1 else 1.0), 2.5 * rows + 0.3))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    layers = list(dict.fromkeys(layer for bands in found.values() for layer in bands))
    looks = {layer: style(k) for k, layer in enumerate(layers)}
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    for axes, (method, bands) in zip(grid.flat, found.items()):
        tasks = max(len(band.tasks) for band in bands.values())
        for layer, band in bands.items():
            _band(axes, band, looks[layer], plain(layer, 24), tasks)
        axes.set_title(plain(method, 48 // columns))
        axes.set_ylim(0, 1)
        axes.grid(axis="y")
        _task_axis(axes, tasks)
        if axes in grid[:, 0]:
            axes.set_ylabel("quota of A (share of the space)")
    unique = {
        label: handle
        for axes in grid.flat[: len(found)]
        for handle, label in zip(*axes.get_legend_handles_labels())
    }
    figure.legend(
        list(unique.values()),
        list(unique),
        loc="outside right upper",
        title="layer",
        alignment="left",
    )
    return figure


def spectra(results: dict[str, Any], method: str) -> Figure:
    """Singular values of A after each task, a panel a layer (the report's figure 2)."""
    found = measures.spectra(results, method)
    figure = Figure(figsize=(WIDTH, 2.35 * len(found) + 0.25))
    grid = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    ramp = mpl.colormaps["viridis"]
    for k, (axes, (layer, values)) in enumerate(zip(grid, found.items())):
        quota = measures.claimed(results, method, layer, values)
        shown = [t - 1 for t in milestones(len(values))]
        for n, task in enumerate(shown):
            share = n / max(len(shown) - 1, 1)
            look = line_look(Style(0, n % 4, "circle"), "", marks=False)
            look["color"] = ramp(0.8 * (1 - share))
            axes.plot(
                np.arange(1, len(values[task]) + 1),
                values[task],
                label=f"after task {task + 1}: {quota[task]:.2f}",
                **look,
            )
        part = f"({chr(97 + k)}) " if len(found) > 1 and k < 26 else ""
        axes.set_title(f"{part}{plain(layer)}")
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlim(1, max(2, *(len(v) for v in values)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axes.grid(axis="y")
        axes.set_ylabel("singular value of A")
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1.01, 1.03),
            title="quota of A",
            alignment="left",
            borderaxespad=0,
        )
    grid[-1].set_xlabel("index of the singular value, largest first")
    figure.suptitle(plain(method), x=0.01, ha="left", fontsize=9)
    return figure


def matrices(results: dict[str, Any]) -> Figure:
    """Accuracy on every task after every task: a heat map a method, on one colour scale."""
    names = measures.methods(results)
    found = [measures.accuracy_matrix(results, name) for name in names]
    low = measures.floor_of(found)
    figure, grid = _panels(len(names))
    image = None
    for axes, name, matrix in zip(grid, names, found):
        hidden = ~measures.learned(matrix.mean)
        image = _heat(axes, matrix.mean, low, 100.0, 0, hidden)
        axes.set_title(plain(name, 20))
        axes.set_xlabel("tested on task")
        together = len(matrix.mean) < matrix.mean.shape[1]
        axes.set_ylabel("after all tasks" if together else "after learning task")
    if image is not None:
        figure.colorbar(image, ax=list(grid), shrink=0.7, aspect=24, label="test accuracy (%)")
    if any(len(m.mean) > 1 for m in found):
        future = Patch(facecolor="white", hatch="/////", edgecolor="#d5d8dc", linewidth=0.4)
        figure.legend([future], ["not learned yet"], loc="outside lower left")
    return figure


def similarities(results: dict[str, Any]) -> Figure:
    """Similarity between the conceptors of the tasks: a heat map a method."""
    found = measures.similarities(results)
    figure, grid = _panels(len(found))
    image = None
    for axes, (name, matrix) in zip(grid, found.items()):
        image = _heat(axes, matrix.mean, 0.0, 1.0, 2, np.zeros(matrix.mean.shape, dtype=bool))
        axes.set_title(plain(name, 26))
        axes.set_xlabel("task")
        axes.set_ylabel("task")
    if image is not None:
        figure.colorbar(image, ax=list(grid), shrink=0.8, aspect=24, label="similarity ρ")
    return figure


def _panels(n: int) -> tuple[Figure, list[Axes]]:
    columns = {1: 1, 2: 2, 4: 2}.get(n, 3)
    rows = math.ceil(n / columns)
    width, height = {1: (3.6, 2.95), 2: (5.6, 2.5), 3: (WIDTH, 2.15)}[columns]
    figure = Figure(figsize=(width, height * rows + 0.25))
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in grid[n:]:
        axes.set_visible(False)
    return figure, grid[:n]


def _heat(
    axes: Axes, values: Array, low: float, high: float, digits: int, hidden: Any
) -> AxesImage:
    """Cells coloured from white to dark, with numbers where there is room."""
    rows, columns = values.shape
    shown = np.ma.masked_where(hidden | np.isnan(values), values)
    image = axes.imshow(shown, cmap="Blues", vmin=low, vmax=high, aspect="equal")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    across, down = _ticks(columns), _ticks(rows)
    axes.set_xticks([t - 1 for t in across], [str(t) for t in across])
    axes.set_yticks([t - 1 for t in down], [str(t) for t in down])
    if rows == 1:
        axes.set_yticks([])
    if hidden.any():
        ground = Rectangle(
            (-0.5, -0.5),
            columns,
            rows,
            facecolor="white",
            hatch="/////",
            edgecolor="#d5d8dc",
            linewidth=0,
            zorder=-1,
        )
        axes.add_patch(ground)
    if max(rows, columns) > CELLS:
        return image
    size = 7.5 if columns <= 3 else 6.5 if columns <= 6 else 4.6
    for (i, j), value in np.ndenumerate(values):
        if not hidden[i, j] and not np.isnan(value):
            dark = (value - low) / (high - low) > 0.55
            text = f"{value:.{digits + (columns <= 3 and digits == 0)}f}"
            text = text if digits == 0 or columns <= 6 else text.lstrip("0")
            axes.text(
                j,
                i,
                text,
                ha="center",
                va="center",
                fontsize=size,
                color="white" if dark else "#222222",
            )
    return image


def _ticks(tasks: int) -> list[int]:
    return task_ticks(tasks, 10 if tasks <= 10 else 5)


def _band(axes: Axes, band: Band, look: Style, label: str, tasks: int) -> None:
    """A line with markers, and a band of one standard deviation around it."""
    colour = COLOURS[look.colour]
    keywords = line_look(look, colour)
    every = max(tasks // 12, 1)
    axes.plot(band.tasks, band.mean, label=label, markevery=every, **keywords)
    if band.sd is not None:
        low, high = _edges(band)
        if len(band.tasks) > 1:
            axes.fill_between(band.tasks, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.errorbar(
            band.tasks[::every],
            band.mean[::every],
            band.sd[::every],
            fmt="none",
            ecolor=colour,
            elinewidth=0.6,
            capsize=1.5,
            capthick=0.6,
        )


def _edges(band: Band) -> tuple[Array, Array]:
    if band.sd is None:
        return band.mean, band.mean
    return band.mean - band.sd, band.mean + band.sd


def _task_axis(axes: Axes, tasks: int) -> None:
    axes.set_xticks(task_ticks(tasks, 12))
    axes.set_xlabel("number of tasks learned")


def _seeds(results: dict[str, Any]) -> str:
    numbers = {len(measures.runs_of(results, m)) for m in measures.methods(results)}
    if numbers == {1}:
        return "one seed"
    low, high = min(numbers), max(numbers)
    return f"mean ± sd, {high if low == high else f'{low} to {high}'} seeds"
