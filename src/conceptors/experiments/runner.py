"""Methods x seeds on a scenario, written to results.json after every finished seed.

A run can be killed at any moment and started again with the same command: it keeps the finished
seeds and does the others. That holds on every engine: other processes and machines do the work, and
only this one writes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from conceptors.experiments.engines import Engine, Local
from conceptors.experiments.events import Event, Progress, quiet
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.machine import environment, find_device
from conceptors.experiments.methods import METHODS, Learner, parse_settings
from conceptors.experiments.results import Results, measures
from conceptors.experiments.scenarios import build

__all__ = ["Experiment", "ExperimentError", "UnfinishedError", "run"]

_TESTED_AHEAD = 20  # tasks up to which future tasks are tested too: it is half of the testing


class UnfinishedError(RuntimeError):
    """Some of the work failed; all the rest is done and written.

    `failures` has the last traceback of each by name, `diverged` the seeds whose training diverged,
    and `results` what there is.
    """

    def __init__(self, failures: dict[str, str], results: Results, diverged: list[str]) -> None:
        lines = [f"{name} failed:\n{why}" for name, why in failures.items()]
        super().__init__("\n".join([*lines, *diverged]))
        self.failures, self.results, self.diverged = failures, results, diverged


def run(
    experiment: Experiment,
    folder: Path,
    *,
    progress: Progress = quiet,
    engine: Engine | None = None,
) -> Results:
    """Run what is not done yet and return the whole results; by default in this process.

    Seeds that diverged count as done: they would diverge again.

    Raises:
        ExperimentError: impossible request, another run in the folder, other settings in it, or a
            damaged results file. Nothing is overwritten.
        UnfinishedError: something failed on another machine, or seeds diverged, now or earlier;
            everything else is written.
    """
    engine = engine or Local()
    experiment = placed(experiment, engine)
    with _locked(folder):
        results = _resume(experiment, folder / "results.json")
        done = {(entry["method"], entry["seed"]) for entry in [*results.runs, *results.failed]}
        pairs = [(method, seed) for method in experiment.methods for seed in experiment.seeds]
        pieces = [Piece(experiment, *pair) for pair in pairs if pair not in done]
        failures: dict[str, str] = {}
        for outcome in engine.work(pieces, _Shares(progress, len(pieces))):
            if outcome.failure:
                failures[str(pieces[outcome.number])] = outcome.failure
                continue
            entry, results.task_names, results.environment = outcome.value
            results.add(entry, list(results.identity["configs"]))
            results.write(folder / "results.json")
    failed = {(one["method"], one["seed"]): one["reason"] for one in results.failed}
    diverged = [f"{pair[0]} seed {pair[1]} {failed[pair]}" for pair in pairs if pair in failed]
    if failures or diverged:
        raise UnfinishedError(failures, results, diverged)
    return results


def placed(experiment: Experiment, engine: Engine, varied: Collection[str] = ()) -> Experiment:
    """An experiment on the device that an engine gives it; ExperimentError if it cannot be run."""
    experiment.check(varied)
    try:
        return replace(experiment, device=engine.device(experiment.device))
    except ValueError as error:
        raise ExperimentError(str(error)) from error


@dataclass(frozen=True)
class Piece:
    """One method with one seed: work that any process can do."""

    experiment: Experiment
    method: str
    seed: int

    def __str__(self) -> str:
        return f"{self.experiment.scenario}, {self.method} seed {self.seed}"

    def learner(self, progress: Progress) -> Learner:
        """A new learner on the experiment's device."""
        asked, kind = self.experiment, METHODS[self.method]
        device = find_device(asked.device)
        scenario = build(asked.scenario, self.seed, arrays=asked.arrays, **asked.options)
        torch.manual_seed(self.seed)
        settings = parse_settings(kind.settings_type, asked.config(self.method))
        return kind(scenario.to(device), settings, device, progress)

    def __call__(self, progress: Progress) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
        """Learn all tasks: a run or a failure, the tasks' names, and the machine."""
        started = time.perf_counter()
        learner = self.learner(progress)
        tasks, machine = learner.scenario.tasks, environment(learner.device)
        names, sizes = [task.name for task in tasks], [len(task.test) for task in tasks]
        entry: dict[str, Any] = {"method": self.method, "seed": self.seed}
        config = {"config": self.experiment.config(self.method)}
        accuracy, history = [], []
        for number in range(len(tasks)):
            history.append(learner.learn(number))
            if learner.diverged:
                entry["reason"] = f"diverged in {learner.diverged}"
                return entry | config, names, machine
            row = learner.test(number + 1 if len(tasks) > _TESTED_AHEAD else None)
            accuracy.append([round(value, 4) for value in row])
            so_far = measures([row[: number + 1]] * (number + 1), sizes[: number + 1])
            progress(
                Event(
                    *("task", self.method, self.seed, number + 1, len(tasks)),
                    accuracy=row[number],
                    accuracy_so_far=so_far["final_accuracy"],
                )
            )
        entry |= {"accuracy": accuracy, **measures(accuracy, sizes)}
        entry |= {"seconds": round(time.perf_counter() - started, 3), **config}
        entry |= {"machine": machine["device_name"], "history": history, **learner.extras}
        return entry, names, machine


class _Shares:
    """Tells every event which share of a command's work is done.

    A task that is at work counts by its steps. Where tasks end early, it is expected to take as
    many steps as the last finished one of the same method.
    """

    def __init__(self, progress: Progress, pieces: int) -> None:
        self._progress, self._pieces = progress, pieces
        self._done: dict[tuple[str, int], float] = {}  # tasks of each piece
        self._latest: dict[tuple[str, int], int] = {}  # step
        self._expected: dict[str, int] = {}  # steps of a task, by method

    def __call__(self, event: Event) -> None:
        key = event.method, event.seed
        if event.kind == "step":
            expected = self._expected.get(event.method, event.steps)
            self._done[key] = event.task - 1 + min(1.0, event.step / expected)
            self._latest[key] = event.step
        else:
            self._done[key] = event.task
            self._expected[event.method] = self._latest.get(key, 1)
        share = sum(self._done.values()) / (self._pieces * event.tasks)
        self._progress(replace(event, share=share))


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One run at a time in a folder, which is created; the lock of a killed run is taken over."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ExperimentError(f"cannot write into {folder}: {error.strerror}") from error
    try:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ExperimentError(
                    f"another run is writing to {folder}; wait for it, or choose another --out"
                ) from None
        yield
    finally:
        os.close(handle)  # the lock goes with it, also when the process is killed


def _resume(experiment: Experiment, path: Path) -> Results:
    """Earlier results of the same settings, or new ones."""
    wanted = json.loads(json.dumps(experiment.identity()))
    chosen = experiment.chosen(experiment.methods[0])
    fresh = Results(
        scenario=experiment.scenario,
        preset=experiment.preset,
        command=experiment.command,
        identity=wanted,
        deviations=chosen.deviations,
        reference=chosen.reference,
    )
    if not path.exists():
        return fresh
    try:
        earlier = Results.read(path)
        methods = {entry["method"] for entry in [*earlier.runs, *earlier.failed]}
        if methods - set(earlier.identity.get("configs", ())):
            raise ValueError(f"{path} does not say with which settings it was made")
    except (ValueError, OSError) as error:
        raise ExperimentError(f"{error}; move it away, or choose another --out") from error
    changed = _differences(earlier, wanted)
    if changed and earlier.runs:
        lines = "\n".join(f"  {line}" for line in changed)
        raise ExperimentError(
            f"{path.parent} holds results of other settings:\n{lines}\nchoose another --out, or "
            f"run with the settings it has"
        )
    if changed:  # it holds failures only, and these are the settings to try instead
        return fresh
    configs = {**earlier.identity["configs"], **wanted["configs"]}
    earlier.failed = [one for one in earlier.failed if one["config"] == configs[one["method"]]]
    return replace(earlier, command=experiment.command, identity={**wanted, "configs": configs})


def _differences(results: Results, wanted: dict[str, Any]) -> list[str]:
    """One line per difference; only methods that have runs and are wanted count."""
    before, lines = results.identity, []
    for key in ("scenario", "preset", "options"):
        if before.get(key) != wanted[key]:
            lines.append(f"{key}: {before.get(key)!r} there, {wanted[key]!r} now")
    for method in sorted({run["method"] for run in results.runs} & set(wanted["configs"])):
        old, new = before["configs"][method], wanted["configs"][method]
        for name in sorted(set(old) | set(new)):
            if old.get(name) != new.get(name):
                lines.append(f"{method}.{name}: {old.get(name)!r} there, {new.get(name)!r} now")
    return lines
