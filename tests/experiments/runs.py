"""Small experiments, and what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conceptors.experiments.events import quiet
from conceptors.experiments.runner import Experiment, run

FAST: dict[str, Any] = {"hidden": "8", "steps": 20, "batch": 16, "check_every": 10}
TWO = Experiment("disjoint-mnist", ["sgd", "ewc"], [0, 1], settings={"*": FAST})


def quietly(experiment: Experiment, folder: Path) -> dict[str, Any]:
    return run(experiment, folder, progress=quiet).to_json()


def timeless(results: dict[str, Any]) -> dict[str, Any]:
    """Results without what may differ between two equal runs."""
    left: dict[str, Any] = json.loads(json.dumps(results))
    del left["environment"]
    for row in [*left["runs"], *left["summary"].values()]:
        row.pop("seconds")
        row.pop("together", None)
    return left


def read(folder: Path) -> dict[str, Any]:
    """What an experiment wrote."""
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found
