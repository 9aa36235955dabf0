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
from collections.abc import Iterator
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
    retry: bool = False,
) -> Results:
    """Run what is not done yet and return the whole results.

    Args:
        engine: where to run; by default in this process.
        retry: also seeds that diverged with these settings.

    Raises:
        ExperimentError: impossible request, another run in the folder, other settings in it, or a
            damaged results file. Nothing is overwritten.
        UnfinishedError: something failed on another machine, or seeds diverged, now or earlier;
            everything else is written.
    """
    engine = engine or Local()
    experiment = placed(experiment, engine)
    with locked(folder):
        results = _resume(experiment, folder / "results.json")
        done = {(run["method"], run["seed"]) for run in results.runs}
        if not retry:
            done |= {(failure["method"], failure["seed"]) for failure in results.failed}
        pairs = [(method, seed) for method in experiment.methods for seed in experiment.seeds]
        pieces = [Piece(experiment, *pair) for pair in pairs if pair not in done]
        failures: dict[str, str] = {}
        for finished in engine.work(pieces, Shares(progress, len(pieces))):
            if finished.failure:
                failures[str(pieces[finished.number])] = finished.failure
            else:
                _add(results, finished.value)
                _write(results, folder / "results.json")
        if results.runs or results.failed:  # the command and the order of methods may be new
            _write(results, folder / "results.json")
    diverged = [
        f"{one['method']} seed {one['seed']} {one['reason']}"
        for one in results.failed
        if (one["method"], one["seed"]) in pairs
    ]
    if failures or diverged:
        raise UnfinishedError(failures, results, diverged)
    return results


def placed(experiment: Experiment, engine: Engine, varied: list[str] | None = None) -> Experiment:
    """An experiment on the device that an engine gives it; ExperimentError if it cannot be run."""
    experiment.check(varied or [])
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
        device, kind = find_device(self.experiment.device), METHODS[self.method]
        scenario = build(
            self.experiment.scenario,
            self.seed,
            arrays=self.experiment.arrays,
            **self.experiment.options,
        )
        torch.manual_seed(self.seed)
        settings = parse_settings(kind.settings_type, self.experiment.config(self.method))
        return kind(scenario.to(device), settings, device, progress)

    def __call__(self, progress: Progress) -> dict[str, Any]:
        """Learn all tasks; their names, a run or a failure, and the machine it was on."""
        started = time.perf_counter()
        learner = self.learner(progress)
        tasks = learner.scenario.tasks
        sizes = [len(task.test) for task in tasks]
        where = environment(learner.device)
        result = {"task_names": [task.name for task in tasks], "environment": where}
        record = {"method": self.method, "seed": self.seed}
        config = self.experiment.config(self.method)
        accuracy, history = [], []
        for number in range(len(tasks)):
            history.append(learner.learn(number))
            if learner.diverged:
                failure = {**record, "reason": f"diverged in {learner.diverged}", "config": config}
                return {**result, "failure": failure}
            row = learner.test(number + 1 if len(tasks) > _TESTED_AHEAD else None)
            accuracy.append([round(value, 4) for value in row])
            progress(self._task_done(number, row, sizes))
        record |= {
            "accuracy": accuracy,
            **measures(accuracy, sizes),
            "seconds": round(time.perf_counter() - started, 3),
            "config": config,
            "machine": where["device_name"],
            "history": history,
        }
        return {**result, "run": record | learner.extras}

    def _task_done(self, number: int, row: list[float], sizes: list[int]) -> Event:
        count = number + 1
        right = sum(accuracy * size for accuracy, size in zip(row[:count], sizes))
        so_far = right / sum(sizes[:count])
        return Event(
            "task",
            self.method,
            self.seed,
            count,
            len(sizes),
            accuracy=row[number],
            accuracy_so_far=so_far,
        )


class Shares:
    """Tells every event which share of a command's work is done.

    A task that is at work counts by its steps. Where tasks end early, it is expected to take as
    many steps as those of the same method that are finished.
    """

    def __init__(self, progress: Progress, pieces: int) -> None:
        self._progress, self._pieces = progress, pieces
        self._done: dict[tuple[str, int], float] = {}  # tasks of each piece
        self._last_step: dict[tuple[str, int], int] = {}
        self._steps: dict[str, list[int]] = {}  # of finished tasks, by method

    def __call__(self, event: Event) -> None:
        key, steps = (event.method, event.seed), self._steps.setdefault(event.method, [])
        if event.kind == "task":
            self._done[key] = event.task
            steps.append(self._last_step.pop(key, 0))
        elif event.kind == "step":
            expected = sum(steps) / len(steps) if steps and sum(steps) else event.steps
            self._done[key] = event.task - 1 + min(1.0, event.step / expected)
            self._last_step[key] = event.step
        total = self._pieces * max(1, event.tasks)
        self._progress(replace(event, share=sum(self._done.values()) / total))


# --- the results of a folder -------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
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
        if earlier.identity is None:
            raise ValueError(f"{path} does not say with which settings it was made")
    except (ValueError, OSError) as error:
        raise ExperimentError(f"{error}; move it away, or choose another --out") from error
    changed = _differences(earlier, wanted)
    if changed and not earlier.runs:
        return fresh  # it holds failures only, and these are the settings to try instead
    if changed:
        lines = "\n".join(f"  {line}" for line in changed)
        raise ExperimentError(
            f"{path.parent} holds results of other settings:\n{lines}\nchoose another --out, or "
            f"run with the settings it has"
        )
    configs = {**earlier.identity["configs"], **wanted["configs"]}
    fresh.identity = {**wanted, "configs": configs}
    failed = [one for one in earlier.failed if one["config"] == configs.get(one["method"])]
    return replace(
        fresh,
        task_names=earlier.task_names,
        runs=earlier.runs,
        failed=failed,
        summary=earlier.summary,
        environment=earlier.environment,
    )


def _differences(results: Results, wanted: dict[str, Any]) -> list[str]:
    """One line per difference; only methods that have runs and are wanted count."""
    before, lines = results.identity or {}, []
    for key in ("scenario", "preset", "options"):
        if before.get(key) != wanted[key]:
            lines.append(f"{key}: {before.get(key)!r} there, {wanted[key]!r} now")
    for method in sorted({run["method"] for run in results.runs} & set(wanted["configs"])):
        old, new = before["configs"][method], wanted["configs"][method]
        for name in sorted(set(old) | set(new)):
            if old.get(name) != new.get(name):
                lines.append(f"{method}.{name}: {old.get(name)!r} there, {new.get(name)!r} now")
    return lines


def _add(results: Results, learned: dict[str, Any]) -> None:
    """Add what a piece came to."""
    results.task_names, results.environment = learned["task_names"], learned["environment"]
    if "failure" in learned:
        results.add_failure(learned["failure"])
    else:
        results.add_run(learned["run"], (results.identity or {})["configs"])


def _write(results: Results, path: Path) -> None:
    try:
        results.write(path)
    except OSError as error:
        raise ExperimentError(
            f"cannot write {path}: {error.strerror or error}; the last good one is still there"
        ) from error
