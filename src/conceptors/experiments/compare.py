"""Every method on every benchmark, each into its benchmark's folder; started again, it resumes.

A cell is one method on one benchmark. What fails in one does not stop the others.
"""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from conceptors._internal.files import write_atomically
from conceptors._internal.suggest import nearest
from conceptors.experiments.benchmarks import BENCHMARKS, METHODS_COMPARED, Benchmark
from conceptors.experiments.events import Progress
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.machine import find_device
from conceptors.experiments.methods import METHODS, Settings
from conceptors.experiments.results import Results
from conceptors.experiments.runner import run
from conceptors.experiments.scenarios import SCENARIOS
from conceptors.experiments.scenarios.data import Arrays, load
from conceptors.experiments.tuned import TUNED

# what `--check` makes small, wherever a method has such a setting
_TINY: dict[str, Any] = {
    "steps": 3,
    "batch": 16,
    "check_every": 3,
    "validation": 50,
    "samples": 50,
    "fisher_samples": 20,
    "labels": "true",  # of the Fisher: one gradient for each sample, not one for each class
    "lift": 50,
    "filters": 20,
}
_TINY_TASKS, _TINY_SAMPLES, _TINY_LAYER = 5, 1000, "16"


@dataclass(frozen=True)
class Cell:
    """One method on one benchmark."""

    benchmark: Benchmark
    method: str
    seeds: int

    def __str__(self) -> str:
        return f"{self.benchmark.name}, {self.method}"

    @property
    def has_own_settings(self) -> bool:
        """Whether settings were chosen for this method here, beyond those that all share."""
        return self.method in TUNED.get(self.benchmark.name, {})


@dataclass(frozen=True)
class Plan:
    """What is to be run, and why some of what was asked for is not."""

    cells: list[Cell]
    notes: list[str]


@dataclass(frozen=True)
class How:
    """How all cells are run."""

    device: str = "auto"
    stacked: int = 0  # as in an experiment
    check: bool = False  # tiny sizes, only to see that everything runs
    command: str = ""  # each benchmark adds its name
    arrays: Arrays | None = field(default=None, compare=False, repr=False)  # instead of all data


def plan(rows: Sequence[str] = (), methods: Sequence[str] = (), seeds: int | None = None) -> Plan:
    """Cells of the named benchmarks and methods, by default of all that apply.

    Raises:
        ExperimentError: unknown name.
    """
    for row in rows:
        if row not in BENCHMARKS:
            raise ExperimentError(f"unknown benchmark {row!r}{nearest(row, BENCHMARKS)}")
    known = {*METHODS_COMPARED, *METHODS}
    for method in methods:
        if method not in known:
            raise ExperimentError(f"unknown method {method!r}{nearest(method, known)}")
    wanted = list(dict.fromkeys(methods or METHODS_COMPARED))
    cells: list[Cell] = []
    why: dict[tuple[str, str], list[str]] = {}
    for row in dict.fromkeys(rows or BENCHMARKS):
        for method in wanted:
            if reason := why_not(BENCHMARKS[row], method):
                why.setdefault((method, reason), []).append(row)
            else:
                cells.append(Cell(BENCHMARKS[row], method, seeds or BENCHMARKS[row].seeds))
    notes = [
        f"without {method} on {', '.join(left)}: {reason}"
        if len(left) < len(rows or BENCHMARKS)
        else f"without {method}: {reason}"
        for (method, reason), left in why.items()
    ]
    return Plan(cells, notes)


def why_not(benchmark: Benchmark, method: str) -> str:
    """Why a method has no place on a benchmark; empty if it has."""
    if method not in METHODS:
        return "there is no such method yet"
    kind = METHODS[method]
    if needs_task_label(method) and not benchmark.told:
        return "it is told the task, which nobody tells here"
    if not issubclass(kind.settings_type, Settings) and _differs_only_in_network(benchmark):
        return "it trains no network, which is all that is different there"
    return ""


def needs_task_label(method: str) -> bool:
    """Whether a method has parts of its own for each task, or is told the task when tested."""
    return bool(getattr(METHODS.get(method), "needs_task_label", False))


def _differs_only_in_network(benchmark: Benchmark) -> bool:
    alike = [
        other
        for other in BENCHMARKS.values()
        if (other.scenario, other.options) == (benchmark.scenario, benchmark.options)
    ]
    return alike[0] is not benchmark


def experiment(cell: Cell, how: How) -> Experiment:
    """What a cell runs."""
    options, settings = dict(cell.benchmark.options), {}
    if how.check:
        options["tasks"] = min(options["tasks"], _TINY_TASKS)
        layers = len((cell.benchmark.hidden or "").split(","))
        tiny = {**_TINY, "hidden": ",".join([_TINY_LAYER] * layers)}
        known = METHODS[cell.method].settings_type.__dataclass_fields__
        settings = {cell.method: {k: v for k, v in tiny.items() if k in known}}
    return Experiment(
        cell.benchmark.scenario,
        [cell.method],
        list(range(cell.seeds)),
        preset=cell.benchmark.name,
        options=options,
        settings=settings,
        device=how.device,
        stacked=how.stacked,
        command=f"{how.command} --rows {cell.benchmark.name}".strip(),
        arrays=how.arrays,
    )


def seeds_left(wanted: Experiment, folder: Path) -> list[int]:
    """Seeds that a folder has no run of; all of them where its settings are others."""
    (method,) = wanted.methods
    try:
        held = Results.read(folder / "results.json")
    except (OSError, ValueError):
        return wanted.seeds
    mine = json.loads(json.dumps(wanted.identity()))
    found = held.identity or {"configs": {}}
    same = all(found.get(part) == mine[part] for part in ("scenario", "preset", "options"))
    if not same or found["configs"].get(method) != mine["configs"][method]:
        return wanted.seeds
    return [seed for seed in wanted.seeds if seed not in held.seeds_of(method)]


def run_all(
    cells: Iterable[Cell],
    folder: Path,
    how: How,
    *,
    progress: Progress,
    tell: Callable[[str], None],
) -> dict[str, str]:
    """Run what is not done yet; what failed, and why, by cell.

    The traceback of a failure is kept beside the results, in `failed-METHOD.txt`.

    Raises:
        ValueError: the device cannot be used.
    """
    find_device(how.device)
    left: list[tuple[Cell, Experiment]] = []
    done = 0
    for cell in cells:
        wanted = experiment(cell, how)
        if seeds_left(wanted, folder / cell.benchmark.name):
            left.append((cell, wanted))
        else:
            done += 1
    if done:
        tell(f"{done} of {done + len(left)} done already")
    failed: dict[str, str] = {}
    for number, (cell, planned) in enumerate(left, 1):
        wanted, own = planned, folder / cell.benchmark.name
        note = own / f"failed-{cell.method}.txt"
        more = len(seeds_left(wanted, own))
        tell(f"[{number}/{len(left)}] {cell}, {more} seed{'s' if more > 1 else ''}")
        try:
            if how.check and how.arrays is None:
                wanted = replace(wanted, arrays=_few(SCENARIOS[wanted.scenario].data))
            row = run(wanted, own, progress=progress).summary[cell.method]
            note.unlink(missing_ok=True)
            outcome = f"{row['mean']:.2f} ± {row['std']:.2f} %"
        except Exception as error:
            failed[str(cell)] = f"{type(error).__name__}: {error}"
            outcome = f"failed, {failed[str(cell)]}"
            _keep(note, traceback.format_exc())
        tell(f"[{number}/{len(left)}] {cell}: {outcome}")
        _forget_device_memory()
    return failed


def _few(data: str) -> Arrays:
    """Some samples of a data set, evenly spaced: not all sets are in random order."""
    return Arrays(*(part[:: max(1, len(part) // _TINY_SAMPLES)].clone() for part in load(data)))


def _keep(path: Path, text: str) -> None:
    """Write a note; where that fails, the failure has been told anyway."""
    try:
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except OSError:
        return


def _forget_device_memory() -> None:
    """What a cell held on a GPU, also one that failed, is free for the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
