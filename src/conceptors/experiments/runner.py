"""Methods x seeds on a scenario, written to results.json after every finished seed.

A run can be killed at any moment and started again with the same command: finished seeds are
kept, the rest is done, and the file ends up the same.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from conceptors.experiments.events import Event, Progress
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.machine import environment
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.results import Results, Run, measures

__all__ = ["Experiment", "ExperimentError", "run"]

Log = Callable[[str, int, int, list[float]], None]  # method, seed, task from 0, accuracies


def run(
    experiment: Experiment, folder: Path, *, progress: Progress, log: Log | None = None
) -> Results:
    """Run what is not done yet; the whole results.

    Raises:
        ExperimentError: impossible request, another run in the folder, other settings in it, or a
            damaged results file. Nothing is overwritten.
    """
    device = experiment.check()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExperimentError(f"cannot make the folder {folder}: {error.strerror}") from error
    with _locked(folder):
        results = _resume(experiment, folder)
        methods = list((results.identity or {})["configs"])
        left = [
            (method, group)
            for method in experiment.methods
            for group in experiment.groups(
                method, [s for s in experiment.seeds if s not in results.seeds_of(method)], device
            )
        ]
        for number, (method, seeds) in enumerate(left):
            told = _counted(progress, number, len(left))
            results.task_names, runs = _learn(experiment, method, seeds, device, told, log)
            results.add(runs, methods)
            _write(results, folder, device)
        _write(results, folder, device)
    return results


def _counted(progress: Progress, before: int, groups: int) -> Progress:
    """Progress that also says how much of the whole command is done."""

    def told(event: Event) -> None:
        part = event.step / event.steps if event.kind == "step" else 1.0
        done = before * event.tasks + event.task - 1 + part
        progress(replace(event, done=done, planned=groups * event.tasks))

    return told


def _learn(
    experiment: Experiment,
    method: str,
    seeds: list[int],
    device: torch.device,
    progress: Progress,
    log: Log | None,
) -> tuple[list[str], list[Run]]:
    """(names of the tasks, one run a seed): all tasks for some seeds at once."""
    kind = METHODS[method]
    config = experiment.config(method)
    scenario = experiment.build(seeds, device)
    started = time.perf_counter()
    torch.manual_seed(seeds[0])
    learner = kind(scenario, parse_settings(kind.settings_type, config), device, progress)
    learner.replay = experiment.replay
    accuracy: list[list[list[float]]] = [[] for _ in seeds]
    history: list[list[dict[str, Any]]] = [[] for _ in seeds]
    sizes = [[task.test.sizes()[i] for task in scenario.tasks] for i in range(len(seeds))]
    for number in range(len(scenario.tasks)):
        for past, new in zip(history, learner.learn(number)):
            past.append(new)
        for rows, row in zip(accuracy, learner.test().tolist()):
            rows.append([round(value, 4) for value in row])
        progress(_task_done(method, seeds, number, [rows[-1] for rows in accuracy], sizes))
        if log is not None:
            for seed, rows in zip(seeds, accuracy):
                log(method, seed, number, rows[-1])
    seconds = (time.perf_counter() - started) / len(seeds)
    names = [task.name for task in scenario.tasks]
    return names, [
        Run(
            method=method,
            seed=seed,
            accuracy=accuracy[i],
            **measures(accuracy[i], sizes[i]),
            seconds=round(seconds, 3),
            config=config,
            extras={"history": history[i], **learner.extras[i]},
        )
        for i, seed in enumerate(seeds)
    ]


def _task_done(
    method: str, seeds: list[int], number: int, rows: list[list[float]], sizes: list[list[int]]
) -> Event:
    """The event after a task, from each seed's accuracies and numbers of test samples."""
    upto = number + 1
    so_far = [
        sum(a * n for a, n in zip(row[:upto], own)) / sum(own[:upto])
        for row, own in zip(rows, sizes)
    ]
    return Event(
        "task",
        method,
        tuple(seeds),
        upto,
        len(rows[0]),
        accuracy=statistics.mean(row[number] for row in rows),
        accuracy_so_far=statistics.mean(so_far),
    )


# --- the folder --------------------------------------------------------------------------


def _write(results: Results, folder: Path, device: torch.device) -> None:
    results.environment = environment(device)
    try:
        results.write(folder / "results.json")
    except OSError as error:
        raise ExperimentError(
            f"cannot write {folder / 'results.json'}: {error.strerror or error}; the last good "
            f"one is still there"
        ) from error


def _resume(experiment: Experiment, folder: Path) -> Results:
    """Earlier results in the folder, if they belong to this experiment."""
    wanted = json.loads(json.dumps(experiment.identity()))
    chosen = experiment.chosen(experiment.methods[0])
    fresh = Results(
        scenario=experiment.scenario,
        title=experiment.scenario,
        preset=wanted["preset"],
        command=experiment.command,
        identity=wanted,
        deviations=list(chosen.deviations),
        reference=chosen.reference,
    )
    path = folder / "results.json"
    if not path.exists():
        return fresh
    try:
        held = Results.read(path)
        if held.identity is None:
            raise ValueError(f"{path} does not say with which settings it was made")
    except ValueError as error:
        raise ExperimentError(f"{error}; move it away, or choose another --out") from error
    if changed := _difference(held.identity, wanted):
        lines = "\n".join(f"  {line}" for line in changed)
        raise ExperimentError(
            f"{folder} holds results of other settings:\n{lines}\nchoose another --out, or run "
            f"with the settings it has"
        )
    merged = {**held.identity["configs"], **wanted["configs"]}
    return replace(
        fresh,
        identity={**wanted, "configs": merged},
        task_names=held.task_names,
        runs=held.runs,
        summary=held.summary,
    )


def _difference(held: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What differs, a line each; methods that only one of the two has do not count."""
    lines = []
    for key in ("scenario", "preset", "options"):
        if held.get(key) != wanted[key]:
            lines.append(f"{key}: {held.get(key)!r} there, {wanted[key]!r} now")
    for method in sorted(set(held["configs"]) & set(wanted["configs"])):
        old, new = held["configs"][method], wanted["configs"][method]
        old = {**asdict(METHODS[method].settings_type()), **old}  # settings that came later
        for name in sorted(set(old) | set(new)):
            if old.get(name) != new.get(name):
                lines.append(f"{method}.{name}: {old.get(name)!r} there, {new.get(name)!r} now")
    return lines


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One run at a time in a folder; the lock of a killed run is taken over."""
    path = folder / ".lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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
