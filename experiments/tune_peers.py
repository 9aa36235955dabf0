"""Choose settings of EWC and IMM on validation data, by a plain grid (no optuna needed).

    python experiments/tune_peers.py disjoint-ewc --device cuda --out out/tune

Every setting is tried with three seeds; the score is the accuracy on the validation images of all
tasks after the last one. Test images are not looked at. One line a trial goes to OUT/NAME.jsonl;
started again, finished trials are skipped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path
from typing import Any

from conceptors.experiments.events import quiet
from conceptors.experiments.runner import Experiment
from conceptors.experiments.trials import validation_accuracies

RELU = {"activation": "relu", "loss": "softmax", "init": "uniform", "scale": 1.7, "steps": 0}

GRIDS: dict[str, tuple[str, str, dict[str, Any], dict[str, list[Any]]]] = {
    "disjoint-ewc": (
        "disjoint-mnist",
        "ewc",
        {**RELU, "hidden": "800", "batch": 64, "epochs": 5.0, "labels": "all"},
        {
            "loss": ["softmax", "bce"],
            "rate": [0.0003, 0.001, 0.003, 0.01, 0.03, 0.1],
            "strength": [100.0, 1e3, 3e3, 1e4, 3e4, 1e5],
        },
    ),
    "disjoint-imm": (
        "disjoint-mnist",
        "imm",
        {**RELU, "hidden": "800", "batch": 64, "epochs": 5.0},
        {
            "loss": ["softmax", "bce"],
            "mode": ["mean", "mode"],
            "l2": [0.0, 1e-4, 1e-3],
            "rate": [0.01, 0.03, 0.1],
            "share": [0.5, 0.55, 0.6, 0.65, 0.7],
        },
    ),
    "permuted-ewc": (
        "permuted-mnist",
        "ewc",
        {**RELU, "hidden": "100", "batch": 64, "epochs": 3.0, "labels": "all"},
        {"rate": [0.03, 0.1, 0.2], "strength": [1.0, 3.0, 6.0, 10.0, 15.0, 30.0]},
    ),
    "permuted-sgd": (
        "permuted-mnist",
        "sgd",
        {**RELU, "hidden": "100", "batch": 64, "epochs": 3.0},
        {"rate": [0.03, 0.1]},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("name", nargs="+", choices=GRIDS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("out/tune"))
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so long")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes
    for name in options.name:
        scenario, method, common, grid = GRIDS[name]
        path = options.out / f"{name}.jsonl"
        done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        tried = [row["settings"] for row in done]
        for values in itertools.product(*grid.values()):
            settings = dict(zip(grid, values))
            if settings in tried or time.monotonic() > until:
                continue
            experiment = Experiment(
                scenario,
                [method],
                list(range(100, 100 + options.seeds)),
                settings={method: {**common, **settings}},
                device=options.device,
                stacked=options.seeds,
            )
            started = time.perf_counter()
            score = statistics.mean(validation_accuracies(experiment, quiet))
            row = {"settings": settings, "validation": round(score, 3)}
            done.append(row)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{name} {row} {time.perf_counter() - started:.1f} s", flush=True)
        if done:
            best = max(done, key=lambda row: row["validation"])
            print(f"{name}: best of {len(done)}: {best}", flush=True)


if __name__ == "__main__":
    main()
