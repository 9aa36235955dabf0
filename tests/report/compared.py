"""Made-up results of benchmarks, with the numbers that a test asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.results import Results, Run, measures, summarise

Finals = dict[str, list[float]]  # final accuracies by method, one for each seed


def run(method: str, seed: int, final: float, tasks: int, lost: float) -> Run:
    """All tasks end at `final`; all but the last have lost `lost` since they were learned."""
    rows = [
        [final + (lost if i == j and j < tasks - 1 else 0.0) for j in range(tasks)]
        for i in range(tasks)
    ]
    steps = [] if method == "readout" else [50, 100]
    extras: dict[str, Any] = {
        "history": [{"task": k, "step": steps, "loss": [], "validation": []} for k in range(tasks)]
    }
    if method in ("readout", "owm"):
        extras["stored_numbers"] = 1_234_567
    seconds = {"sgd": 2.0, "cab": 3.0}.get(method, 4.0)
    return Run(method, seed, rows, **measures(rows), seconds=seconds, config={}, extras=extras)


def results(name: str, finals: Finals, lost: dict[str, float] | None = None) -> Results:
    """What `conceptors all` would have written for a benchmark."""
    benchmark = BENCHMARKS[name]
    tasks = min(benchmark.tasks, 10)
    runs = [
        run(method, seed, final, tasks, (lost or {}).get(method, 0.0))
        for method, values in finals.items()
        for seed, final in enumerate(values)
    ]
    return Results(
        scenario=benchmark.scenario,
        preset=name,
        command=f"conceptors all --device cuda --rows {name}",
        runs=runs,
        summary=summarise(runs),
        environment={"device_name": "a fast machine", "torch": "2.13.0"},
    )


def spread(mean: float, seeds: int = 10, sd: float = 0.1) -> list[float]:
    """Numbers with this mean and about this standard deviation."""
    half = [sd if k % 2 else -sd for k in range(seeds)]
    return [mean + part for part in half]


def write(folder: Path, found: dict[str, Results]) -> None:
    for name, one in found.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "results.json").write_text(json.dumps(one.to_json()))
