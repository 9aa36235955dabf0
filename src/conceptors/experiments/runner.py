"""Run methods x seeds on a scenario, and write results.json after every finished seed.

A run can be killed at any moment. The same command resumes it: finished seeds are not run again.
Other processes and machines only compute; this process alone writes.
"""

import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from conceptors import __version__
from conceptors.experiments.engines import Engine, Local, find_device
from conceptors.experiments.events import Event, Progress, quiet
from conceptors.experiments.experiment import Experiment
from conceptors.experiments.methods import METHODS
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import parse_settings
from conceptors.experiments.results import (
    SCHEMA,
    add_entry,
    measures,
    overall,
    read_results,
    write_results,
)
from conceptors.experiments.scenarios.images import build

__all__ = ["Experiment", "UnfinishedError", "run"]

_TESTED_AHEAD = 20  # tasks up to which future tasks are tested too: it is half of the testing


class UnfinishedError(RuntimeError):
    """Some seeds diverged, or failed on another machine; `results` has everything that finished."""

    def __init__(self, reasons: list[str], results: dict[str, Any]) -> None:
        super().__init__("\n".join(reasons))
        self.results = results


def run(
    experiment: Experiment,
    folder: Path,
    *,
    progress: Progress = quiet,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Run the seeds that are not done yet, by default in this process, and return all results.

    Seeds that diverged count as done: they would diverge again.

    Raises:
        ValueError: the request is impossible, or the folder has another run, other settings
            or a damaged results file. Nothing is overwritten.
        UnfinishedError: seeds diverged, now or earlier, or failed on another machine. Everything
            else is written.
    """
    engine = engine or Local()
    experiment.check()
    experiment = replace(experiment, device=engine.device(experiment.device))
    with _locked(folder):
        results = _resume(experiment, folder / "results.json") | {"command": experiment.command}
        methods = list(dict.fromkeys([*results["summary"], *experiment.methods]))
        ended = {(entry["method"], entry["seed"]) for entry in results["runs"] + results["failed"]}
        pairs = [(method, seed) for method in experiment.methods for seed in experiment.seeds]
        pieces = [Piece(experiment, *pair) for pair in pairs if pair not in ended]
        reasons = []
        for outcome in engine.work(pieces, progress):
            if outcome.failure:
                piece = pieces[outcome.number]
                reasons.append(f"{piece.method} seed {piece.seed} failed:\n{outcome.failure}")
                continue
            entry, results["task_names"], results["environment"] = outcome.value
            add_entry(results, entry, methods)
            write_results(results, folder / "results.json")
    failed = [entry for entry in results["failed"] if (entry["method"], entry["seed"]) in pairs]
    reasons += ["{method} seed {seed} {reason}".format(**entry) for entry in failed]
    if reasons:
        raise UnfinishedError(reasons, results)
    return results


@dataclass(frozen=True)
class Piece:
    """One method with one seed: work that any process can do."""

    experiment: Experiment
    method: str
    seed: int

    def learner(self, progress: Progress) -> Learner:
        """A new learner on the experiment's device."""
        request, kind = self.experiment, METHODS[self.method]
        device = find_device(request.device)
        scenario = build(request.scenario, self.seed, data=request.data, **request.options)
        torch.manual_seed(self.seed)
        settings = parse_settings(kind.settings_type, request.config(self.method))
        return kind(scenario.to(device), settings, device, progress)

    def __call__(self, progress: Progress) -> tuple[dict[str, Any], list[str], dict[str, Any]]:
        """Learn all tasks; return a run or a failure, the tasks' names, and the environment."""
        started = time.perf_counter()
        learner = self.learner(progress)
        tasks, machine = learner.scenario.tasks, environment(learner.device)
        names, sizes = [task.name for task in tasks], [len(task.test) for task in tasks]
        entry: dict[str, Any] = {"method": self.method, "seed": self.seed}
        config = {"config": self.experiment.config(self.method)}
        accuracy: list[list[float]] = []
        for number in range(len(tasks)):
            learner.learn(number)
            if learner.diverged:
                entry["reason"] = f"diverged in task {number + 1} of {len(tasks)}"
                return entry | config, names, machine
            row = learner.test(number + 1 if len(tasks) > _TESTED_AHEAD else None)
            accuracy.append([round(value, 4) for value in row])
            text = f"{self.method}, seed {self.seed}, task {number + 1} of {len(tasks)}: "
            text += f"{row[number]:.1f} % on this task"
            if number:
                learned = overall(row[: number + 1], sizes[: number + 1])
                text += f", {learned:.1f} % on all tasks so far"
            progress(Event(text))
        entry |= {"accuracy": accuracy, **measures(accuracy, sizes)}
        entry |= {"seconds": round(time.perf_counter() - started, 3), **config}
        return entry | learner.extras, names, machine


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and the machine, as plain values."""
    cuda = device.type == "cuda"
    return {
        "conceptors": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "cores": os.cpu_count(),
        "platform": platform.system(),
    }


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create a folder and lock it for one run; the lock of a killed run is gone with it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as handle:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(
                    f"another run is writing to {folder}; wait for it, or choose another --out"
                ) from None
        yield


def _resume(experiment: Experiment, path: Path) -> dict[str, Any]:
    """Earlier results of the same settings, or new ones."""
    asked = {name: getattr(experiment, name) for name in ("scenario", "preset", "options")}
    if not path.exists():
        chosen = experiment.chosen(experiment.methods[0])
        published = {"deviations": chosen.deviations, "reference": chosen.reference}
        return {"schema": SCHEMA, **asked, **published, "runs": [], "failed": [], "summary": {}}
    try:
        earlier = read_results(path, finished=False)
    except (ValueError, OSError) as error:
        raise ValueError(f"{error}; move it away, or choose another --out") from error
    earlier["failed"] = earlier.get("failed") or []
    compared = [(name, earlier.get(name), value) for name, value in asked.items()]
    configs = {entry["method"]: entry["config"] for entry in earlier["runs"] + earlier["failed"]}
    for method in sorted(configs.keys() & {*experiment.methods}):
        old, new = configs[method], experiment.config(method)
        compared += [(f"{method}.{k}", old.get(k), new.get(k)) for k in sorted({*old, *new})]
    changes = [f"  {name}: {old!r} there, {new!r} now" for name, old, new in compared if old != new]
    if changes:
        lines = "\n".join(changes)
        raise ValueError(
            f"{path.parent} has results of other settings:\n{lines}\nResults of different settings "
            f"cannot be compared. Choose another --out, or use the settings of the folder."
        )
    return earlier
