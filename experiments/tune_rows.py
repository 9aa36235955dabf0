"""Choose settings of cab and its relatives for the comparison on validation data, a grid at once.

    python experiments/tune_rows.py --device cuda                   # the MNIST rows, minutes
    python experiments/tune_rows.py --device cuda --rows split-cifar100-heads --methods gpm sgp

Test data is not looked at. Every point of a grid is a line of OUT/ROW/METHOD/trials.jsonl, and
OUT/best.json has the best; started again, what is there is not done again. At the end the best are
printed for `tuned.py`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from conceptors.experiments.events import quiet
from conceptors.experiments.tune_rows import How, experiment, for_tuned, points, searches
from conceptors.experiments.tune_rows import run_searches as run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", nargs="+", default=[], help="(default: MNIST, without 100 tasks)")
    parser.add_argument("--methods", nargs="+", default=[], help="(default: cab and all relatives)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=1, help="for every point (default 1)")
    parser.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="for all: precision=tf32"
    )
    parser.add_argument("--list", action="store_true", help="show the grids and stop")
    parser.add_argument("--out", type=Path, default=Path("results/tuning/rows"))
    options = parser.parse_args()
    wanted, how = (
        searches(options.rows, options.methods),
        How(options.device, options.seeds, dict(text.split("=", 1) for text in options.set)),
    )
    if options.list:
        for search in wanted:
            print(f"{search}: {len(points(search, experiment(search, how)))} points {search.grid}")
        return
    started = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - started:.0f} s {text}", file=sys.stderr, flush=True)

    print(for_tuned(run(wanted, options.out, how, progress=quiet, tell=tell)))


if __name__ == "__main__":
    main()
