"""How methods stand on the benchmarks: from results alone, with what others have published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from conceptors.experiments.benchmarks import BENCHMARKS, METHODS_COMPARED, OURS, Benchmark
from conceptors.experiments.compare import needs_task_label
from conceptors.experiments.methods import METHODS, Settings
from conceptors.experiments.results import read_results
from conceptors.experiments.step_times import STEPS, StepTimes
from conceptors.report import measures
from conceptors.report.measures import CEILINGS

Verdict = Literal["ahead", "level", "behind", "unclear"]


@dataclass(frozen=True)
class Standing:
    """What a method reached on a benchmark; means over seeds, accuracies in percent."""

    method: str
    mean: float
    sd: float | None = None  # None: a single seed, or not published
    n: int | None = None  # None: published
    failed: int = 0  # seeds that came to no end
    label: bool = False  # it has parts of its own for each task, or is told the task when tested
    network: bool = True  # it trains the benchmark's network
    learned: float | None = None  # accuracy of each task right after it was learned
    forgetting: float | None = None
    transfer: float | None = None  # backward
    stored: float | None = None  # numbers that it keeps from task to task
    seconds: float | None = None
    step: float | None = None  # time of a training step, as a multiple of plain SGD's
    source: str = ""  # where it was published

    @property
    def error(self) -> float | None:
        """Standard error of the mean; 0 for a published mean, None where one seed tells none."""
        if self.n is None:
            return 0.0
        return None if self.sd is None else self.sd / math.sqrt(self.n)

    @property
    def name(self) -> str:
        """The method with its marks."""
        return marked(self.method, self.label, self.network)

    @property
    def ours(self) -> bool:
        return self.method in OURS and self.n is not None

    @property
    def rival(self) -> bool:
        """Whether ours is to be held against it: no bound, and it trains the same network."""
        return self.network and not self.ours and self.method not in CEILINGS


def marked(method: str, label: bool, network: bool) -> str:
    """A method's name with what is to be known of it."""
    marks = ("*" * label, "†" * (not network), "‡" * (method in CEILINGS))
    return method + "".join(marks)


def verdict(own: Standing, other: Standing) -> Verdict:
    """Ahead is a higher mean with standard errors that do not overlap; behind is the reverse.

    Level is an overlap, and a single seed is unclear.

    >>> verdict(Standing("cab", 97.0, 0.2, 4), Standing("ewc", 96.7, 0.2, 4))
    'ahead'
    >>> verdict(Standing("cab", 97.0, 0.2, 4), Standing("ewc", 96.9, 0.2, 4))
    'level'
    """
    if own.error is None or other.error is None:
        return "unclear"
    apart = abs(own.mean - other.mean) > own.error + other.error
    if not apart:
        return "level"
    return "ahead" if own.mean > other.mean else "behind"


@dataclass(frozen=True)
class Table:
    """All standings on one benchmark."""

    benchmark: Benchmark
    reached: list[Standing]  # highest first
    published: list[Standing]
    seeds: dict[str, list[tuple[int, float]]]  # (seed, accuracy) by method
    made: str = ""  # by which command, and where
    failed: dict[str, int] = field(default_factory=dict)  # seeds of methods that have no others

    def of(self, method: str) -> Standing | None:
        return next((one for one in self.reached if one.method == method), None)

    @property
    def own(self) -> Standing | None:
        """The best of ours."""
        return next((one for one in self.reached if one.ours), None)

    @property
    def rivals(self) -> list[Standing]:
        """What ours is held against, also as published; highest first."""
        found = [one for one in [*self.reached, *self.published] if one.rival]
        return sorted(found, key=lambda one: -one.mean)

    def against(self, wanted: Verdict) -> list[Standing]:
        """Rivals that ours is ahead of, level with, behind, or not to be told from yet."""
        own = self.own
        return [] if own is None else [r for r in self.rivals if verdict(own, r) == wanted]

    def missed(self) -> list[str] | None:
        """By how much parts of the goal are missed; None if that cannot be said yet."""
        own, goal, joint = self.own, self.benchmark.goal, self.of("joint")
        others = [one.mean for one in self.reached if one.rival]
        if own is None:
            return None
        gaps: list[tuple[str, float | None]] = []
        if goal.accuracy is not None:
            gaps.append((f"{goal.accuracy:g}", goal.accuracy - own.mean))
        if goal.transfer is not None:
            gap = None if own.transfer is None else goal.transfer - own.transfer
            gaps.append(("the backward transfer", gap))
        if goal.below_joint is not None:
            gap = None if joint is None else joint.mean - goal.below_joint - own.mean
            gaps.append((f"{goal.below_joint:g} points below joint", gap))
        if goal.above_others is not None:
            gap = max(others) + goal.above_others - own.mean if others else None
            gaps.append((f"{goal.above_others:g} points above the best other", gap))
        if any(gap is None for _, gap in gaps):
            return None
        return [f"{what} is missed by {gap:.2f}" for what, gap in gaps if gap and gap > 0]


def read_tables(folder: Path, rows: Sequence[str] = ()) -> list[Table]:
    """A table for every benchmark, in their order; without results those published are alone.

    Raises:
        ValueError: a damaged results file, or one of another benchmark.
    """
    tables = []
    for name in rows or BENCHMARKS:
        path = folder / name / "results.json"
        results = read_results(path, finished=False) if path.is_file() else None
        if results is not None and not results["runs"]:
            results = None  # all seeds failed
        if results is not None and results.get("preset") != name:
            raise ValueError(
                f"{path} has settings of the preset {results.get('preset')!r}, not of {name!r}; "
                f"run it with: conceptors all --rows {name}"
            )
        timed = path.with_name(STEPS)
        times = StepTimes.read(timed) if timed.is_file() else None
        tables.append(table(BENCHMARKS[name], results, times))
    return tables


def table(
    benchmark: Benchmark, results: dict[str, Any] | None, times: StepTimes | None = None
) -> Table:
    """The standings of one benchmark's results, with times of steps where they are known."""
    published = [
        Standing(p.method, p.mean, p.std, label=p.label, source=p.source)
        for p in benchmark.published
    ]
    if results is None:
        return Table(benchmark, [], published, {})
    names = [m for m in METHODS_COMPARED if m in measures.methods(results)]
    names += [m for m in measures.methods(results) if m not in names]  # one's own
    reached = [_standing(results, name, times) for name in names]
    seeds = {name: measures.final_accuracies(results, name) for name in names}
    reached.sort(key=lambda one: -one.mean)
    lost = dict.fromkeys(one["method"] for one in results.get("failed", ()))
    failed = {name: _failed(results, name) for name in lost if name not in names}
    return Table(benchmark, reached, published, seeds, _made(results, times), failed)


def _made(results: dict[str, Any], times: StepTimes | None) -> str:
    found = results["environment"]
    where = found.get("device_name") or found.get("device") or "a machine that is not named"
    torch = f", torch {found['torch']}" if found.get("torch") else ""
    made = f"`{results.get('command') or 'conceptors all'}` on {where}{torch}"
    elsewhere: dict[str, list[str]] = {}
    for method in measures.methods(results):
        machines = {run.get("machine") or where for run in measures.runs_of(results, method)}
        for machine in sorted(machines - {where}):
            elsewhere.setdefault(machine, []).append(method)
    made += "".join(f"; {', '.join(names)} on {it}" for it, names in elsewhere.items())
    if times is not None:
        many = f"{times.seeds} seed{'s' if times.seeds > 1 else ''} at once"
        made += f"; steps timed by `{times.command}` on {times.machine}, {many}"
    return made


def _standing(results: dict[str, Any], method: str, times: StepTimes | None) -> Standing:
    entry, runs = results["summary"][method], measures.runs_of(results, method)
    return Standing(
        method,
        entry["mean"],
        entry["std"] if len(runs) > 1 else None,
        len(runs),
        _failed(results, method),
        label=needs_task_label(method),
        network=trains_network(method),
        learned=_learned(runs),
        forgetting=entry.get("forgetting"),
        transfer=entry.get("backward_transfer"),
        stored=entry.get("stored_numbers"),
        seconds=None if any(run.get("shared") for run in runs) else entry.get("seconds"),
        step=None if times is None else times.ratios.get(method),
    )


def trains_network(method: str) -> bool:
    """Whether it trains the benchmark's network; one that is not known here may."""
    kind = METHODS.get(method)
    return kind is None or issubclass(kind.settings_type, Settings)


def _failed(results: dict[str, Any], method: str) -> int:
    """Seeds that came to no end; of other settings none are kept."""
    return sum(one["method"] == method for one in results.get("failed", ()))


def _learned(runs: list[dict[str, Any]]) -> float | None:
    """Mean accuracy of a task right after it was learned."""
    if any(len(run["accuracy"]) != len(run["accuracy"][-1]) for run in runs):
        return None  # all tasks were learned at once
    return float(np.mean([row[k] for run in runs for k, row in enumerate(run["accuracy"])]))
