"""Whether similar tasks help each other: steps to a goal, final accuracy and space claimed.

    python experiments/reuse.py --device cuda --seeds 10 --out results/reuse

Every task is trained until validation accuracy passes the goal, or for so many steps at most: by a
new network (scratch), and one task after the other by conceptor-aided back-propagation, without
and with reuse. Writes OUT/reuse.json (and every run's own results.json below it); started again,
it goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from conceptors._internal.files import write_atomically
from conceptors.experiments.events import quiet
from conceptors.experiments.results import Results, Run
from conceptors.experiments.runner import Experiment, run
from conceptors.methods import Learner, add


@add
class Scratch(Learner):
    """Every task is learned by the network that the first began with."""

    name = "scratch"
    about = "a new network for every task"

    def start_task(self, number: int) -> None:
        new = self.network().to(self.device)
        with torch.no_grad():
            for ours, fresh in zip(self.model.parameters(), new.parameters()):
                ours.copy_(fresh)


SEQUENCES: dict[str, tuple[str, dict[str, Any], float]] = {
    "rotated by 10°": ("rotated-mnist", {"degrees": 10.0}, 0.0),
    "a tenth of the pixels shuffled": ("permuted-mnist", {"shuffled": 0.1}, 0.0),
    "two classes each": ("disjoint-mnist", {}, 5.0),  # the goal is higher: it is easier
    "all pixels shuffled": ("permuted-mnist", {}, 0.0),
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "scratch": ("scratch", {}),
    "cab, aperture 2": ("cab", {"aperture": 2.0}),
    "cab, aperture 4": ("cab", {"aperture": 4.0}),
    "cab, aperture 9": ("cab", {"aperture": 9.0}),
    "cab, aperture 9, later rate 1": ("cab", {"aperture": 9.0, "later_rate": 1.0}),
    "cab, aperture 9, reuse": ("cab", {"aperture": 9.0, "reuse": True}),
    "cab, aperture 9, reuse, claim once": (
        "cab",
        {"aperture": 9.0, "reuse": True, "claim_once": True},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sequence", action="append", choices=SEQUENCES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=10, help="where classes do not limit it")
    parser.add_argument("--limit", type=int, default=None, help="images, validation included")
    parser.add_argument("--hidden", default="100")
    parser.add_argument("--goal", type=float, default=95.0, help="validation accuracy in percent")
    parser.add_argument("--steps", type=int, default=10_000, help="at most, per task")
    parser.add_argument("--check-every", type=int, default=25)
    parser.add_argument("--out", type=Path, default=Path("results/reuse"))
    options = parser.parse_args()
    chosen = options.sequence or list(SEQUENCES)
    rows: list[dict[str, Any]] = []
    for sequence in chosen:
        scenario, own, harder = SEQUENCES[sequence]
        own = {**own, "tasks": 5 if scenario.startswith("disjoint") else options.tasks}
        own |= {} if options.limit is None else {"limit": options.limit}
        common = {
            "hidden": options.hidden,
            "batch": 50,
            "rate": 0.1,
            "steps": options.steps,
            "stop_above": min(99.0, options.goal + harder),
            "check_every": options.check_every,
        }
        for name, (method, settings) in VARIANTS.items():
            experiment = Experiment(
                scenario,
                [method],
                list(range(options.seeds)),
                options=own,
                settings={method: {**common, **settings}},
                device=options.device,
            )
            folder = options.out / f"{sequence} {name}".replace(" ", "-").replace(",", "")
            rows.append({"sequence": sequence, "variant": name})
            results = run(experiment, folder, progress=quiet)
            rows[-1] |= measured(results, experiment)
            print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
            table = {"rows": rows, "environment": results.environment}
            data = json.dumps(table, indent=1, ensure_ascii=False).encode()
            write_atomically(options.out / "reuse.json", data)


def measured(results: Results, experiment: Experiment) -> dict[str, Any]:
    """Means over seeds (and standard deviations) of one variant, later tasks only for steps."""
    runs = results.runs
    found: dict[str, Any] = {"seeds": len(runs), "settings": experiment.settings}
    found["machines"] = sorted({run.extras["machine"] for run in runs})
    later = [[task["step"][-1] for task in run.extras["history"][1:]] for run in runs]
    found["steps"] = _spread([statistics.mean(own) for own in later])
    found["steps_by_task"] = [round(statistics.mean(column)) for column in zip(*later)]
    found["goal_reached"] = statistics.mean(_reached(run) for run in runs)
    if results.runs[0].method == "scratch":
        return found
    found["accuracy"] = _spread([run.final_accuracy for run in runs])
    found["before_learning"] = _spread(
        [statistics.mean(row[i + 1] for i, row in enumerate(run.accuracy[:-1])) for run in runs]
    )
    for layer in runs[0].extras["quota"]:
        found[f"quota {layer}"] = _spread([run.extras["quota"][layer][-1] for run in runs])
    return found


def _reached(run: Run) -> float:
    """The share of later tasks that passed the goal."""
    tasks = run.extras["history"][1:]
    return statistics.mean(t["validation"][-1] > run.config["stop_above"] for t in tasks)


def _spread(values: list[float]) -> list[float]:
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return [round(statistics.mean(values), 3), round(deviation, 3)]


if __name__ == "__main__":
    main()
