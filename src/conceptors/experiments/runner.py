"""Methods x seeds on a scenario, written to results.json after every finished seed.

A run can be killed at any moment and started again with the same command: finished seeds are
kept, the rest is done, and the file ends up the same.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from conceptors._internal.storage import write_atomically
from conceptors._internal.suggest import nearest
from conceptors.experiments.methods import METHODS, parse_settings
from conceptors.experiments.presets import preset as find_preset
from conceptors.experiments.scenarios import SCENARIOS, build

SCHEMA = 1


class ExperimentError(ValueError):
    """Something about the request that must be changed; the message says what."""


@dataclass(frozen=True)
class Experiment:
    """What is to be run."""

    scenario: str
    methods: list[str]
    seeds: list[int]
    preset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the scenario
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # method -> settings
    device: str = "cpu"
    stacked: int = 0  # seeds learned at once; 0: all on a GPU, one on a CPU
    command: str = ""

    def config(self, method: str) -> dict[str, Any]:
        """All settings of a method, checked."""
        if method not in METHODS:
            raise ExperimentError(f"unknown method {method!r}{nearest(method, METHODS)}")
        given = {**find_preset(self.preset, self.scenario).settings(method)}
        given |= self.settings.get("*", {}) | self.settings.get(method, {})
        kind = METHODS[method].settings_type
        known = {name: value for name, value in given.items() if name in kind.__dataclass_fields__}
        if unknown := set(self.settings.get(method, {})) - set(known):
            name = sorted(unknown)[0]
            raise ExperimentError(
                f"method {method!r} has no setting {name!r}"
                f"{nearest(name, kind.__dataclass_fields__)}"
            )
        return asdict(parse_settings(kind, known))

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to belong together."""
        return {
            "scenario": self.scenario,
            "preset": self.preset,
            "options": self.options,
            "configs": {method: self.config(method) for method in self.methods},
        }


Progress = Callable[[str], None]


def run(
    experiment: Experiment, folder: Path, *, progress: Progress, log: Any = None
) -> dict[str, Any]:
    """Run what is not done yet; the whole results.

    Raises:
        ExperimentError: impossible request, another run in the folder, other settings in it, or a
            damaged results file. Nothing is overwritten.
    """
    _check(experiment)
    device = _device(experiment.device)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExperimentError(f"cannot make the folder {folder}: {error.strerror}") from error
    with _locked(folder):
        results = _resume(experiment, folder)
        for method in experiment.methods:
            done = {r["seed"] for r in results["runs"] if r["method"] == method}
            left = [seed for seed in experiment.seeds if seed not in done]
            for group in _groups(experiment, left, device):
                names, runs = _learn(experiment, method, group, device, progress, log)
                results["task_names"], results["runs"] = names, results["runs"] + runs
                _write(experiment, results, folder, device)
        _write(experiment, results, folder, device)
    return results


def _learn(
    experiment: Experiment,
    method: str,
    seeds: list[int],
    device: torch.device,
    progress: Progress,
    log: Any,
) -> tuple[list[str], list[dict[str, Any]]]:
    """(names of the tasks, one run a seed): all tasks for some seeds at once."""
    kind = METHODS[method]
    config = experiment.config(method)
    scenario = build(experiment.scenario, seeds, **experiment.options).to(device)
    count = len(scenario.tasks)
    label = f"{method}, seed{'s' if len(seeds) > 1 else ''} {_ranges(seeds)}"
    where = [0]

    def report(text: str) -> None:
        progress(f"{label}, task {where[0] + 1}/{count}: {text}")

    started = time.perf_counter()
    torch.manual_seed(seeds[0])
    learner = kind(scenario, parse_settings(kind.settings_type, config), device, report)
    accuracy: list[list[list[float]]] = [[] for _ in seeds]
    history: list[list[dict[str, Any]]] = [[] for _ in seeds]
    for number in range(count):
        where[0] = number
        for past, new in zip(history, learner.learn(number)):
            past.append(new)
        for rows, row in zip(accuracy, learner.test().tolist()):
            rows.append([round(value, 4) for value in row])
        report(f"mean test accuracy {statistics.mean(a[-1][number] for a in accuracy):.2f} %")
        if log is not None:
            for seed, rows in zip(seeds, accuracy):
                log(method, seed, number, rows[-1])
    seconds = (time.perf_counter() - started) / len(seeds)
    names = [task.name for task in scenario.tasks]
    return names, [
        {
            "method": method,
            "seed": seed,
            "accuracy": accuracy[i],
            **measures(accuracy[i], [task.test.sizes()[i] for task in scenario.tasks]),
            "seconds": round(seconds, 3),
            "config": config,
            "history": history[i],
            **learner.extras[i],
        }
        for i, seed in enumerate(seeds)
    ]


def measures(accuracy: list[list[float]], sizes: list[int] | None = None) -> dict[str, float]:
    """Final accuracy over all test samples, mean forgetting, and backward transfer, in percent.

    `sizes` are the numbers of test samples of the tasks (equal if not given).

    Forgetting: how far the best accuracy a task ever had, after it was learned, is above the last
    one, mean over all but the last task. Backward transfer: last accuracy minus that right after
    learning the task.

    >>> measures([[90.0, 5.0], [80.0, 70.0]])
    {'final_accuracy': 75.0, 'forgetting': 10.0, 'backward_transfer': -10.0}
    """
    last = accuracy[-1]
    count = len(last)
    sizes = sizes or [1] * count
    final = sum(a * n for a, n in zip(last, sizes)) / sum(sizes)
    old = range(count - 1)
    best = [max(accuracy[i][j] for i in range(j, count)) - last[j] for j in old]
    moved = [last[j] - accuracy[j][j] for j in old]
    return {
        "final_accuracy": round(final, 4),
        "forgetting": round(sum(best) / max(1, count - 1), 4),
        "backward_transfer": round(sum(moved) / max(1, count - 1), 4),
    }


def summarise(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over seeds, a row a method."""
    summary: dict[str, dict[str, Any]] = {}
    for method in dict.fromkeys(r["method"] for r in runs):
        own = [r for r in runs if r["method"] == method]
        final = [r["final_accuracy"] for r in own]
        summary[method] = {
            "mean": round(statistics.mean(final), 4),
            "std": round(statistics.stdev(final), 4) if len(final) > 1 else 0.0,
            "n": len(final),
            "forgetting": round(statistics.mean(r["forgetting"] for r in own), 4),
            "backward_transfer": round(statistics.mean(r["backward_transfer"] for r in own), 4),
            "seconds": round(statistics.mean(r["seconds"] for r in own), 3),
        }
    return summary


# --- the folder --------------------------------------------------------------------------


def _write(
    experiment: Experiment, results: dict[str, Any], folder: Path, device: torch.device
) -> None:
    order = {name: i for i, name in enumerate(results["identity"]["configs"])}
    results["runs"].sort(key=lambda r: (order[r["method"]], r["seed"]))
    results["summary"] = summarise(results["runs"])
    results["environment"] = environment(device)
    data = readable(results).encode()
    try:
        write_atomically(folder / "results.json", data)
    except OSError as error:
        raise ExperimentError(
            f"cannot write {folder / 'results.json'}: {error.strerror or error}; the last good "
            f"one is still there"
        ) from error


def readable(results: dict[str, Any]) -> str:
    """JSON with a line a value, but lists of numbers on one line."""
    text = json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub(r"\[\s+([-+\d.eE,\s]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)


def _resume(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Earlier results in the folder, if they belong to this experiment."""
    wanted = json.loads(json.dumps(experiment.identity()))
    preset = find_preset(experiment.preset, experiment.scenario)
    fresh: dict[str, Any] = {
        "schema": SCHEMA,
        "scenario": experiment.scenario,
        "title": experiment.scenario,
        "preset": experiment.preset,
        "command": experiment.command,
        "identity": wanted,
        "task_names": [],
        "deviations": list(preset.deviations),
        "reference": preset.reference,
        "runs": [],
        "summary": {},
        "environment": {},
    }
    path = folder / "results.json"
    if not path.exists():
        return fresh
    try:
        held = json.loads(path.read_text())
        if held["schema"] != SCHEMA:
            raise ValueError(f"schema {held['schema']}")
        found = held["identity"]
        changed = _difference(found, wanted)
        runs = list(held["runs"])
        if strange := {r["method"] for r in runs} - set(found["configs"]):
            raise ValueError(f"no configuration of {sorted(strange)[0]!r}")
        measured = {"seed", "accuracy", "final_accuracy", "forgetting", "backward_transfer"}
        if not all(measured | {"seconds"} <= set(r) for r in runs):
            raise ValueError("a run without measures")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExperimentError(
            f"{path} is damaged or not ours ({error}); move it away, or choose another --out"
        ) from error
    if changed:
        lines = "\n".join(f"  {line}" for line in changed)
        raise ExperimentError(
            f"{folder} holds results of other settings:\n{lines}\nchoose another --out, or run "
            f"with the settings it has"
        )
    merged = {**found["configs"], **wanted["configs"]}
    names = held.get("task_names", [])
    return {
        **fresh,
        "identity": {**wanted, "configs": merged},
        "task_names": names,
        "runs": runs,
    }


def _difference(held: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """What differs, a line each; methods that only one of the two has do not count."""
    lines = []
    for key in ("scenario", "preset", "options"):
        if held.get(key) != wanted[key]:
            lines.append(f"{key}: {held.get(key)!r} there, {wanted[key]!r} now")
    for method in set(held["configs"]) & set(wanted["configs"]):
        old, new = held["configs"][method], wanted["configs"][method]
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


# --- around it ---------------------------------------------------------------------------


def _check(experiment: Experiment) -> None:
    if experiment.scenario not in SCENARIOS:
        raise ExperimentError(
            f"unknown scenario {experiment.scenario!r}{nearest(experiment.scenario, SCENARIOS)}"
        )
    if not experiment.methods:
        raise ExperimentError(f"no method given{nearest('', METHODS)}")
    if experiment.stacked < 0:
        raise ExperimentError(f"stacked must be at least 0, got {experiment.stacked}")
    if not experiment.seeds or len(set(experiment.seeds)) != len(experiment.seeds):
        raise ExperimentError(f"seeds must be different numbers, got {experiment.seeds}")
    try:
        for method in experiment.methods:
            experiment.config(method)
        _check_names(experiment.settings, experiment.methods)
    except ValueError as error:
        raise ExperimentError(str(error)) from error


def _check_names(settings: dict[str, dict[str, Any]], methods: list[str]) -> None:
    """Settings that no method here would take."""
    for method in settings:
        if method != "*" and method not in METHODS:
            raise ExperimentError(
                f"settings for an unknown method {method!r}{nearest(method, METHODS)}"
            )
    known = {name for m in methods for name in METHODS[m].settings_type.__dataclass_fields__}
    if unknown := sorted(set(settings.get("*", {})) - known):
        raise ExperimentError(
            f"no method here has a setting {unknown[0]!r}{nearest(unknown[0], known)}"
        )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        have = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        raise ExperimentError(
            f"device {name!r} cannot be used ({str(error).splitlines()[0]}); this machine has: "
            f"{', '.join(['cpu', *have])}"
        ) from error
    return device


def _groups(experiment: Experiment, seeds: list[int], device: torch.device) -> list[list[int]]:
    """Seeds that learn together: they share a device and a stacked network."""
    at_once = experiment.stacked or (len(seeds) if device.type == "cuda" else 1)
    one_by_one = experiment.options.get("class_order") == "seed"  # tasks of unequal sizes
    if one_by_one or experiment.scenario.startswith("split-cifar"):
        at_once = 1
    return [seeds[i : i + at_once] for i in range(0, len(seeds), max(1, at_once))]


def environment(device: torch.device) -> dict[str, Any]:
    """Where the numbers come from."""
    from conceptors import __version__

    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "conceptors": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": str(device),
        "device_name": named,
        "threads": torch.get_num_threads(),
        "platform": platform.system(),
    }


def _commit() -> str | None:
    try:
        here = Path(__file__).parent
        command = ["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _ranges(seeds: list[int]) -> str:
    consecutive = seeds == list(range(seeds[0], seeds[0] + len(seeds)))
    if len(seeds) > 2 and consecutive:
        return f"{seeds[0]}-{seeds[-1]}"
    return ", ".join(map(str, seeds))
