"""The results of a folder, which one process at a time holds and alone writes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.machine import environment
from conceptors.experiments.methods import METHODS
from conceptors.experiments.methods.settings import recorded_settings
from conceptors.experiments.pieces import Piece
from conceptors.experiments.results import Failure, Results, Run


class Ledger:
    """`results.json` of a folder, for one experiment or several that belong together.

    Made by `open_ledger`. What it raises is ExperimentError; nothing is overwritten then.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: Results | None = None

    @property
    def results(self) -> Results:
        if self._held is None:
            raise RuntimeError("no experiment has joined yet")
        return self._held

    def join(self, experiment: Experiment) -> None:
        """Take an experiment in; earlier results must be of the same settings."""
        self._held = _resume(experiment, self._folder, self._held)

    def left(self, experiment: Experiment, *, retry: bool = False) -> list[Piece]:
        """What is not done yet of an experiment that has joined.

        Seeds that failed would fail again, so that they count as done unless `retry`.
        """
        device = torch.device(experiment.device)
        pieces = []
        for method in experiment.methods:
            over = self.results.seeds_of(method)
            if not retry:
                over |= self.results.failed_seeds_of(method)
            groups = experiment.groups(
                method, [s for s in experiment.seeds if s not in over], device
            )
            pieces += [Piece(experiment, method, group) for group in groups]
        return pieces

    def failed(self, experiment: Experiment) -> list[Failure]:
        """Seeds of an experiment that failed."""
        return [
            failure
            for failure in self.results.failed
            if failure.method in experiment.methods and failure.seed in experiment.seeds
        ]

    def take(self, learned: dict[str, Any]) -> None:
        """Write what a piece came to; seeds that are there already stay as they are."""
        results = self.results
        runs = [Run.from_json(found) for found in learned["runs"]]
        new = [run for run in runs if run.seed not in results.seeds_of(run.method)]
        results.task_names = learned["task_names"]
        results.environment = learned["environment"]
        results.add(new, list((results.identity or {})["configs"]))
        results.give_up(Failure(**found) for found in learned.get("failed", []))
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        path = self._folder / "results.json"
        self.results.environment = self.results.environment or environment(torch.device("cpu"))
        try:
            self.results.write(path)
        except OSError as error:
            raise ExperimentError(
                f"cannot write {path}: {error.strerror or error}; the last good one is still there"
            ) from error


@contextmanager
def open_ledger(folder: Path) -> Iterator[Ledger]:
    """The ledger of a folder, which is made if need be; ExperimentError if another holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExperimentError(f"cannot make the folder {folder}: {error.strerror}") from error
    with locked(folder):
        yield Ledger(folder)


def _resume(experiment: Experiment, folder: Path, held: Results | None) -> Results:
    """Earlier results, held already or in the folder, if they belong to this experiment."""
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
    if held is None and not path.exists():
        return fresh
    try:
        held = held or Results.read(path)
        if held.identity is None:
            raise ValueError(f"{path} does not say with which settings it was made")
    except ValueError as error:
        raise ExperimentError(f"{error}; move it away, or choose another --out") from error
    changed = difference(held, wanted)
    if changed and not held.runs:
        return fresh  # all there is are failures, and these are the settings to try instead
    if changed:
        lines = "\n".join(f"  {line}" for line in changed)
        raise ExperimentError(
            f"{folder} holds results of other settings:\n{lines}\nchoose another --out, or run "
            f"with the settings it has"
        )
    merged = {**held.identity["configs"], **wanted["configs"]}
    failed = [one for one in held.failed if one.config == merged.get(one.method)]
    return replace(
        fresh,
        identity={**wanted, "configs": merged},
        task_names=held.task_names,
        runs=held.runs,
        failed=failed,
        summary=held.summary,
        environment=held.environment,
    )


def difference(results: Results, wanted: dict[str, Any]) -> list[str]:
    """What differs, a line each; only methods that have runs and are wanted count."""
    lines = []
    held: dict[str, Any] = results.identity or {}
    for key in ("scenario", "preset", "options"):
        if held.get(key) != wanted[key]:
            lines.append(f"{key}: {held.get(key)!r} there, {wanted[key]!r} now")
    for method in sorted({run.method for run in results.runs} & set(wanted["configs"])):
        new = wanted["configs"][method]
        old = recorded_settings(METHODS[method].settings_type, held["configs"][method])
        for name in sorted(set(old) | set(new)):
            if old.get(name) != new.get(name):
                lines.append(f"{method}.{name}: {old.get(name)!r} there, {new.get(name)!r} now")
    return lines


@contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """One run at a time in a folder; the lock of a killed run is taken over.

    `wait` for another one to end, instead of an error: for what takes a moment.
    """
    path = folder / ".lock"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ExperimentError(f"cannot write into {folder}: {error.strerror}") from error
    try:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError:
                raise ExperimentError(
                    f"another run is writing to {folder}; wait for it, or choose another --out"
                ) from None
        yield
    finally:
        os.close(handle)  # the lock goes with it, also when the process is killed
