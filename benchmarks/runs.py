"""Run missing experiments with `conceptors run`, one seed at a time, and collect their rows."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.common import Row, Table, environment, numbers, say, words
from conceptors.methods import METHODS

SMALL = {"hidden": 20, "steps": 5, "batch": 20, "samples": 50, "lift": 50, "filters": 20}


@dataclass(frozen=True)
class Run:
    """One method with one seed; `labels` are the columns that name it in the table."""

    labels: dict[str, str]
    scenario: str
    method: str
    seed: int
    arguments: tuple[str, ...] = ()  # of `conceptors run`
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Row:
        return {**self.labels, "method": self.method, "seed": self.seed}

    def command(self, device: torch.device) -> list[str]:
        """Return the command that reproduces the run, without `--out`."""
        settings = [f"--set={self.method}.{name}={value}" for name, value in self.settings.items()]
        seed = ["--first-seed", str(self.seed), "--seeds", "1", "--device", str(device)]
        method = ["--method", self.method]
        return ["conceptors", "run", self.scenario, *method, *self.arguments, *settings, *seed]


def run_missing(
    table: Table, runs: Iterable[Run], device: torch.device, folder: Path, at_tiny_size: bool
) -> int:
    """Run what the table lacks, add one row per run, and return the number of failed runs.

    Every run has its own folder below `folder`, where `conceptors run` resumes it.
    """
    missing = [run for run in runs if run.key not in table]
    if at_tiny_size:
        missing = [tiny(run) for run in missing]
    failures = 0
    for number, run in enumerate(missing, 1):
        command = run.command(device)
        out = folder.joinpath(*run.labels.values(), run.method, str(run.seed))
        result = subprocess.run(
            [sys.executable, "-m", *command, "--quiet", "--out", str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
        row = _row(run, out, shlex.join(command), device)
        if row is None:
            failures += 1
            say(f"{number}/{len(missing)} {run.key} FAILED\n{result.stderr[-2000:]}")
            continue
        table.add(row)
        say(f"{number}/{len(missing)} {run.key}: {row['accuracy'] or row['failed']}")
    return failures


def tiny(run: Run) -> Run:
    """The same run on few samples, with a small network and few features."""
    known = {entry.name for entry in dataclasses.fields(METHODS[run.method].settings_type)}
    small = {name: value for name, value in SMALL.items() if name in known}
    arguments = (*run.arguments, "--limit", "400")
    return replace(run, arguments=arguments, settings={**run.settings, **small})


def _row(run: Run, out: Path, command: str, device: torch.device) -> Row | None:
    """Read the row of a run from its results.json; None if there is none."""
    path = out / "results.json"
    if not path.is_file():
        return None
    results = json.loads(path.read_text(encoding="utf-8"))

    def of_run(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
        same = (e for e in entries if (e["method"], e["seed"]) == (run.method, run.seed))
        return next(same, None)

    row: Row = dict.fromkeys(("accuracy", "forgetting", "learned", "final_accuracies"), "")
    finished, failed = of_run(results["runs"]), of_run(results.get("failed") or [])
    if finished is not None:
        accuracy = finished["accuracy"]
        row |= {
            "accuracy": finished["final_accuracy"],
            "forgetting": finished.get("forgetting", ""),
            "final_accuracies": numbers(accuracy[-1]),
            "seconds": finished["seconds"],
            "settings": words(_changed(run.method, finished["config"])),
        }
        if len(accuracy) == len(accuracy[-1]):
            row["learned"] = round(mean(after[task] for task, after in enumerate(accuracy)), 4)
    elif failed is None:
        return None
    return {
        **run.key,
        **row,
        "command": command,
        **environment(device),
        "failed": failed["reason"] if finished is None and failed else "",
    }


def _changed(method: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return settings that differ from the method's defaults."""
    default = {e.name: e.default for e in dataclasses.fields(METHODS[method].settings_type)}
    return {name: value for name, value in config.items() if default.get(name) != value}
