"""Every method on every benchmark, each into its benchmark's folder; started again, it resumes.

A cell is one method on one benchmark. What fails in one does not stop the others.
"""

from __future__ import annotations

import gc
import json
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from conceptors._internal.files import write_atomically
from conceptors._internal.suggest import nearest
from conceptors.experiments.benchmarks import BENCHMARKS, METHODS_COMPARED, Benchmark
from conceptors.experiments.engines import Engine, Local
from conceptors.experiments.events import Event, Progress
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.ledger import Ledger, difference, open_ledger
from conceptors.experiments.methods import METHODS, Settings
from conceptors.experiments.pieces import Piece
from conceptors.experiments.results import Failure, Results
from conceptors.experiments.runner import counted, placed, run
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
    "reads": "last",  # thousands of features of all layers take minutes on a CPU
    "filters": 20,
}
_TINY_TASKS, _TINY_SAMPLES, _TINY_LAYER = 5, 1000, "16"


@dataclass(frozen=True)
class Cell:
    """One method on one benchmark."""

    benchmark: Benchmark
    method: str
    seeds: int
    settings: dict[str, Any] | None = None  # instead of those chosen for the benchmark

    def __str__(self) -> str:
        return f"{self.benchmark.name}, {self.method}"

    @property
    def has_own_settings(self) -> bool:
        """Whether settings were chosen for this method here, beyond those that all share."""
        chosen = self.method in TUNED.get(self.benchmark.name, {})
        return chosen or self.settings is not None


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
    retry: bool = False  # also seeds that failed with the same settings
    command: str = ""  # each benchmark adds its name
    shared: bool = False  # other work runs on the machine: times are not shown
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
    options, settings = dict(cell.benchmark.options), dict(cell.settings or {})
    if how.check:
        options["tasks"] = min(options["tasks"], _TINY_TASKS)
        layers = len((cell.benchmark.hidden or "").split(","))
        tiny = {**_TINY, "hidden": ",".join([_TINY_LAYER] * layers)}
        known = METHODS[cell.method].settings_type.__dataclass_fields__
        settings |= {k: v for k, v in tiny.items() if k in known}
    return Experiment(
        cell.benchmark.scenario,
        [cell.method],
        list(range(cell.seeds)),
        preset=cell.benchmark.name if cell.settings is None else None,
        options=options,
        settings={cell.method: settings} if settings else {},
        device=how.device,
        stacked=how.stacked,
        command=f"{how.command} --rows {cell.benchmark.name}".strip(),
        shared=how.shared,
        arrays=how.arrays,
    )


@dataclass(frozen=True)
class Standing:
    """What a folder has of a cell."""

    left: list[int]  # seeds to run
    failed: list[Failure]  # seeds that came to no end with the same settings


def standing(wanted: Experiment, folder: Path) -> Standing:
    """How far a cell is; nothing is done where the folder has other settings."""
    (method,) = wanted.methods
    try:
        held = Results.read(folder / "results.json")
    except (OSError, ValueError):
        return Standing(wanted.seeds, [])
    mine = json.loads(json.dumps(wanted.identity()))
    if held.identity is None or difference(held, mine):
        return Standing(wanted.seeds, [])
    failed = [
        one
        for one in held.failed
        if one.method == method and one.seed in wanted.seeds
        if one.config == mine["configs"][method]
    ]
    over = held.seeds_of(method) | {one.seed for one in failed}
    return Standing([seed for seed in wanted.seeds if seed not in over], failed)


def run_all(
    cells: Iterable[Cell],
    folder: Path,
    how: How,
    *,
    progress: Progress,
    tell: Callable[[str], None],
    engine: Engine | None = None,
) -> dict[str, str]:
    """Run what is not done yet; what failed, and why, by cell.

    The traceback of a failure is kept beside the results, in `failed-METHOD.txt`. On an engine
    other than this process all cells are at work at once.

    Raises:
        ValueError: the device cannot be used.
    """
    engine = engine or Local()
    engine.device(how.device)
    left: list[tuple[Cell, Experiment]] = []
    failed: dict[str, str] = {}
    done = 0
    for cell in cells:
        wanted = experiment(cell, how)
        found = standing(wanted, folder / cell.benchmark.name)
        if found.left or (found.failed and how.retry):
            left.append((cell, wanted))
        elif found.failed:
            failed[str(cell)] = _named(found.failed)
        else:
            done += 1
    if done:
        tell(f"{done} of {done + len(left) + len(failed)} done already")
    if not isinstance(engine, Local):
        return failed | _run_side_by_side(left, folder, how, progress, tell, engine)
    for number, (cell, planned) in enumerate(left, 1):
        wanted, own = planned, folder / cell.benchmark.name
        note = own / f"failed-{cell.method}.txt"
        found = standing(wanted, own)
        more = len(found.left) + (len(found.failed) if how.retry else 0)
        tell(f"[{number}/{len(left)}] {cell}, {more} seed{'s' if more > 1 else ''}")
        try:
            wanted = _small(wanted, how)
            row = run(wanted, own, progress=progress, retry=how.retry).summary[cell.method]
            note.unlink(missing_ok=True)
            outcome = f"{row['mean']:.2f} ± {row['std']:.2f} %"
        except Exception as error:
            failed[str(cell)] = f"{type(error).__name__}: {error}"
            outcome = f"failed, {failed[str(cell)]}"
            _keep(note, traceback.format_exc())
        tell(f"[{number}/{len(left)}] {cell}: {outcome}")
        forget_device_memory()
    return failed


def _run_side_by_side(
    left: list[tuple[Cell, Experiment]],
    folder: Path,
    how: How,
    progress: Progress,
    tell: Callable[[str], None],
    engine: Engine,
) -> dict[str, str]:
    """All cells at once on an engine: what comes back goes into its benchmark's folder."""
    failed: dict[str, str] = {}

    def give_up(cell: Cell, words: str, note: str) -> None:
        failed[str(cell)] = words
        tell(f"{cell}: failed, {words}")
        _keep(folder / cell.benchmark.name / f"failed-{cell.method}.txt", note)

    pieces: list[Piece] = []
    owners: list[Cell] = []
    asked: dict[str, Experiment] = {}
    with ExitStack() as held:
        ledgers: dict[str, Ledger] = {}
        for cell, planned in left:
            name = cell.benchmark.name
            try:
                wanted = placed(_small(planned, how), engine)
                if name not in ledgers:
                    ledgers[name] = held.enter_context(open_ledger(folder / name))
                ledgers[name].join(wanted)
            except Exception as error:
                give_up(cell, f"{type(error).__name__}: {error}", traceback.format_exc())
                continue
            asked[str(cell)] = wanted
            more = ledgers[name].left(wanted, retry=how.retry)
            pieces += more
            owners += [cell] * len(more)
        over = 0
        tell(f"{len(pieces)} run{'s' if len(pieces) != 1 else ''} to do")

        def told(event: Event) -> None:
            progress(counted(event, over, len(pieces)))

        waiting = Counter(map(str, owners))
        for finished in engine.work(pieces, told):
            over += 1
            cell = owners[finished.number]
            waiting[str(cell)] -= 1
            if finished.failure:
                give_up(cell, finished.failure.rstrip().splitlines()[-1], finished.failure)
                continue
            ledger = ledgers[cell.benchmark.name]
            ledger.take(finished.value)
            if waiting[str(cell)] or str(cell) in failed:
                continue
            if diverged := ledger.failed(asked[str(cell)]):
                give_up(cell, _named(diverged), _named(diverged))
            else:
                (folder / cell.benchmark.name / f"failed-{cell.method}.txt").unlink(missing_ok=True)
                row = ledger.results.summary[cell.method]
                tell(f"[{over}/{len(pieces)}] {cell}: {row['mean']:.2f} ± {row['std']:.2f} %")
    return failed


def _named(failures: list[Failure]) -> str:
    """Seeds that failed, on one line."""
    return "; ".join(map(str, failures))


def _small(wanted: Experiment, how: How) -> Experiment:
    """With few samples, where it is only to be seen that everything runs."""
    if not how.check or how.arrays is not None:
        return wanted
    return replace(wanted, arrays=_few(SCENARIOS[wanted.scenario].data))


def _few(data: str) -> Arrays:
    """Some samples of a data set, evenly spaced: not all sets are in random order."""
    return Arrays(*(part[:: max(1, len(part) // _TINY_SAMPLES)].clone() for part in load(data)))


def _keep(path: Path, text: str) -> None:
    """Write a note; where that fails, the failure has been told anyway."""
    try:
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    except OSError:
        return


def forget_device_memory() -> None:
    """What a cell held on a GPU, also one that failed, is free for the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
