"""What the paper's silent settings contribute: one of them changed at a time.

    python experiments/ablation.py --device cuda --seeds 10 --out results/ablation

Writes OUT/ablation.json (and every run's own results.json below it); started again, it goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically
from conceptors.experiments.events import quiet
from conceptors.experiments.runner import Experiment, run

VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "disjoint-mnist": {
        "as in the authors' code": {},
        "soft conceptors": {"hard": False},
        "gradients summed, not normalised": {"gradient": "sum"},
        "gradients averaged (the paper's text)": {"gradient": "mean"},
        "soft, averaged (the paper's text alone)": {"gradient": "mean", "hard": False},
        "R from all samples": {"samples": 0},
        "no decay of the increment": {"increment_decay": 0.0},
        "no early stop": {"stop_above": 0.0, "stop_above_later": 0.0},
    },
    "permuted-mnist": {
        "as in the authors' code": {},
        "hard conceptors": {"hard": True},
        "gradients averaged": {"gradient": "mean"},
        "R from all samples": {"samples": 0},
        "no decay of the increment": {"increment_decay": 0.0},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scenario", action="append", choices=VARIANTS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("results/ablation"))
    options = parser.parse_args()
    for scenario in options.scenario or list(VARIANTS):
        rows = []
        for i, (name, settings) in enumerate(VARIANTS[scenario].items()):
            experiment = Experiment(
                scenario,
                ["cab"],
                list(range(options.seeds)),
                preset="paper",
                settings={"cab": settings},
                device=options.device,
            )
            results = run(experiment, options.out / f"{scenario}-{i}", progress=quiet)
            final = results.runs[0].accuracy[-1]
            last = [sum(r.accuracy[-1][k] for r in results.runs) for k in range(len(final))]
            rows.append(
                {
                    "variant": name,
                    "settings": settings,
                    **results.summary["cab"],
                    "first_task": round(last[0] / options.seeds, 2),
                    "last_task": round(last[-1] / options.seeds, 2),
                }
            )
            row = rows[-1]
            print(f"{scenario}: {name:<42} {row['mean']:.2f} ± {row['std']:.2f}", flush=True)
            table = {"rows": rows, "environment": results.environment}
            data = json.dumps(table, indent=1, ensure_ascii=False).encode()
            write_atomically(options.out / f"{scenario}.json", data)


if __name__ == "__main__":
    main()
