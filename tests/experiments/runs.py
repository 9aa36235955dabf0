"""Small experiments, and what they leave."""

import json
from pathlib import Path
from typing import Any

from conceptors.experiments.runner import Experiment, run

FAST: dict[str, Any] = {"hidden": "8", "steps": 20, "batch": 16, "check_every": 10}
QUICK = ["--set", "hidden=6", "--set", "steps=8", "--set", "batch=8"]
RUN = ["run", "disjoint-mnist", "--device", "cpu", *QUICK]
TWO = Experiment(
    "disjoint-mnist", ["sgd", "ewc"], [0, 1], settings={"*": FAST, "ewc": {"strength": 1.0}}
)


def quietly(experiment: Experiment, folder: Path, **options: Any) -> dict[str, Any]:
    """Run an experiment; what it wrote."""
    run(experiment, folder, **options)
    return read(folder)


def timeless(results: dict[str, Any]) -> dict[str, Any]:
    """Results without what may differ between two equal runs."""
    results = json.loads(json.dumps(results))
    del results["environment"]
    for row in [*results["runs"], *results["summary"].values()]:
        row.pop("seconds")
    return results


def read(folder: Path) -> dict[str, Any]:
    """What an experiment wrote."""
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return results
