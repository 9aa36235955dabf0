"""Compare methods on published benchmarks, with the same networks, splits and seeds for all.

benchmarks/comparison.json lists the benchmarks; settings come from `--preset best`, chosen on
validation images. Every run becomes one row of the table: final accuracies, settings, command,
device and commit. Finished runs are not repeated, so an interrupted comparison continues.

    python -m benchmarks.comparison --list                # list the runs that the table lacks
    python -m benchmarks.comparison --device cuda         # run them, one seed after the other
    python -m benchmarks.comparison --benchmarks disjoint-mnist-10 --methods cab --out out/new.csv
    python -m benchmarks.comparison --table               # print the table of docs/comparison.md
    python -m benchmarks.comparison --tiny --out out/tiny.csv   # seconds per run: does it work?

An empty table needs 910 runs. Most take seconds on a GPU; those with 100 tasks take much longer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Table, choices, find_device, markdown, mean_and_std, options, say
from benchmarks.runs import Run, run_missing

DATA = Path(__file__).with_suffix(".json")
KEY = ("benchmark", "method", "seed")
WITHOUT_NETWORK = {"readout"}  # methods that have no setting `hidden`
PER_TASK = {"trgp", "codecl", "separate", "cuber"}  # need per-task parameters or the task ID
ACROSS = 5  # benchmarks side by side in one table


@dataclass(frozen=True)
class Benchmark:
    """A scenario with a network, the methods that run on it, and published accuracies."""

    name: str
    scenario: str
    arguments: list[str]
    seeds: int
    methods: list[str]
    published: dict[str, float]
    hidden: str | None = None
    more_seeds: dict[str, int] | None = None  # methods that run with another number of seeds

    def runs(self, methods: list[str], seeds: int | None) -> list[Run]:
        """The first seed of all methods, then the next."""
        chosen = [name for name in self.methods if name in methods]
        count = {name: seeds or (self.more_seeds or {}).get(name, self.seeds) for name in chosen}
        return [
            self.run(name, seed)
            for seed in range(max(count.values(), default=0))
            for name in chosen
            if seed < count[name]
        ]

    def run(self, method: str, seed: int) -> Run:
        hidden = {} if method in WITHOUT_NETWORK or not self.hidden else {"hidden": self.hidden}
        arguments = (*self.arguments, "--preset", "best")
        labels = {"benchmark": self.name}
        return Run(labels, self.scenario, method, seed, arguments, hidden)


def read(path: Path = DATA) -> list[Benchmark]:
    return [Benchmark(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]


def tables(table: Table, benchmarks: list[Benchmark]) -> str:
    """Methods x benchmarks, mean ± standard deviation; the best without * and joint in bold."""
    names = [name for name in _methods(benchmarks) if any(r["method"] == name for r in table.rows)]
    parts = []
    for at in range(0, len(benchmarks), ACROSS):
        group = benchmarks[at : at + ACROSS]
        best = {b.name: _best(table, b) for b in group}
        rows = [
            [
                name + ("\\*" if name in PER_TASK else ""),
                *(_cell(table, b, name, best) for b in group),
            ]
            for name in names
        ]
        rows.append(["*published, best*", *(_published(b) for b in group)])
        parts.append(markdown(["", *(b.name for b in group)], rows))
    return "\n\n".join(parts)


def _methods(benchmarks: list[Benchmark]) -> list[str]:
    """All methods in the order of the longest lists; `joint` is the last."""
    names = dict.fromkeys(name for b in sorted(benchmarks, key=_length) for name in b.methods)
    return [*(name for name in names if name != "joint"), "joint"]


def _length(benchmark: Benchmark) -> int:
    return -len(benchmark.methods)


def _best(table: Table, benchmark: Benchmark) -> str:
    means = {
        name: sum(values) / len(values)
        for name in benchmark.methods
        if name != "joint" and name not in PER_TASK
        if (values := table.values("accuracy", benchmark=benchmark.name, method=name))
    }
    return max(means, key=lambda name: means[name], default="")


def _cell(table: Table, benchmark: Benchmark, method: str, best: dict[str, str]) -> str:
    here = {"benchmark": benchmark.name, "method": method}
    runs = [row for row in table.rows if all(row[name] == here[name] for name in here)]
    values = table.values("accuracy", **here)
    text = mean_and_std(values)
    if method == best[benchmark.name]:
        text = f"**{text}**"
    notes = []
    if values and len(values) < benchmark.seeds:
        notes.append(f"n = {len(values)}")
    if len(runs) > len(values):
        notes.append(f"{len(runs) - len(values)} diverged")
    return f"{text} ({', '.join(notes)})" if notes else text


def _published(benchmark: Benchmark) -> str:
    if not benchmark.published:
        return "–"
    name = max(benchmark.published, key=lambda method: benchmark.published[method])
    star = "\\*" if name in PER_TASK else ""
    return f"{benchmark.published[name]:.2f} ({name}{star})"


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/comparison.csv")
    every = read()
    choices(parser, "--benchmarks", [b.name for b in every])
    choices(parser, "--methods", _methods(every))
    parser.add_argument("--list", action="store_true", help="print the missing runs and exit")
    parser.add_argument("--runs", type=Path, help="folder of all outputs (default: beside --out)")
    asked = parser.parse_args(arguments)
    benchmarks = [b for b in every if b.name in asked.benchmarks]
    table = Table(asked.out, KEY)
    if asked.table:
        print(tables(table, benchmarks))
        return 0
    runs = [run for b in benchmarks for run in b.runs(asked.methods, asked.seeds)]
    if asked.list:
        for run in runs:
            if run.key not in table:
                print(*run.key.values())
        return 0
    folder = asked.runs or asked.out.with_suffix("")
    failures = run_missing(table, runs, find_device(asked.device), folder, asked.tiny)
    if failures:
        say(f"{failures} runs failed; run the same command again to repeat them")
    print(tables(table, benchmarks))
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
