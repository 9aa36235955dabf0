"""Choose settings of cab and its relatives for the comparison on validation data, a grid at once.

    python experiments/tune_rows.py --device cuda                   # the MNIST rows, minutes
    python experiments/tune_rows.py --device cuda --rows split-cifar100-heads --methods gpm sgp
    python experiments/tune_rows.py --rows disjoint-mnist-5 --methods cab --grid aperture 6 12 24

Test data is not looked at. Every point of a grid is a line of OUT/ROW/METHOD/trials.jsonl, and
OUT/best.json has the best; started again, what is there is not done again. `--adopt` writes the
best into `tuned.json` of this checkout, from which `conceptors all` and `--preset best` take them.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from conceptors.experiments.events import quiet
from conceptors.experiments.experiment import ExperimentError
from conceptors.experiments.tune_rows import (
    How,
    Search,
    chosen,
    experiment,
    points,
    searches,
)
from conceptors.experiments.tune_rows import run_searches as run
from conceptors.experiments.tuned import adopt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", nargs="+", default=[], help="(default: MNIST, without 100 tasks)")
    parser.add_argument("--methods", nargs="+", default=[], help="(default: cab and all relatives)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=1, help="for every point (default 1)")
    parser.add_argument(
        "--set", nargs="+", default=[], type=setting, metavar="NAME=VALUE", help="for all of them"
    )
    parser.add_argument(
        "--grid",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="what to try instead, once for each setting; needs --rows and --methods",
    )
    parser.add_argument("--adopt", action="store_true", help="write the best into tuned.json")
    parser.add_argument("--list", action="store_true", help="show the grids and stop")
    parser.add_argument("--out", type=Path, default=Path("results/tuning/rows"))
    options = parser.parse_args()
    if options.adopt and (more := set(dict(options.set)) - {"precision", "epochs"}):
        parser.error(f"--adopt writes what a grid tries, not {', '.join(sorted(more))} of --set")
    how = How(options.device, options.seeds, dict(options.set))
    try:
        own = {name: values for name, *values in options.grid}
        act(searches(options.rows, options.methods, own), how, options)
    except (ExperimentError, ValueError) as error:
        parser.error(str(error))


def act(wanted: list[Search], how: How, options: argparse.Namespace) -> None:
    if options.list:
        for search in wanted:
            print(f"{search}: {len(points(search, experiment(search, how)))} points {search.grid}")
        return
    started = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - started:.0f} s {text}", file=sys.stderr, flush=True)

    best = run(wanted, options.out, how, progress=quiet, tell=tell)
    if options.adopt:
        adopt(chosen(best, wanted))


def setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not like precision=tf32")
    return name, value


if __name__ == "__main__":
    main()
