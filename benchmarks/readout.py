"""Compare the closed-form readout with its relatives on images and sentences.

Classes of MNIST, Fashion-MNIST, CIFAR-100 and CLINC150 arrive in 2, 5 or 10 tasks. There is no task
ID at test time, and no sample is stored. Features are random functions (`lift`), image patches, or
the layers of a frozen MiniLM; all methods of a stream read the same ones. They were chosen for
`readout` on validation data; other methods use the settings of their papers.

    python -m benchmarks.readout --device cuda                      # run what the table lacks
    python -m benchmarks.readout --streams mnist-10 --methods readout slda --out out/readout.csv
    python -m benchmarks.readout --table                            # print the tables of the docs

An empty table needs 165 runs. One takes seconds to minutes on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Table, choices, find_device, markdown, mean_and_std, options, say
from benchmarks.runs import Run, run_missing

KEY = ("study", "stream", "method", "seed")
PEERS: dict[str, dict[str, Any]] = {
    "ncm": {},
    "slda": {},
    "klda": {"lift": 5000},
    "ranpac": {"lift": 10_000},
    "acil": {"lift": 10_000},
}
COSINES = {"lift": 10_000}
RELUS = {"lift": 10_000, "activation": "relu", "shape": 0}


def patches(size: int, grid: int, count: int) -> dict[str, Any]:
    """Patches of the images, averaged over a grid of cells."""
    return {"features": "patches", "patch": size, "grid": grid, "filters": count}


MNIST, FASHION, CIFAR = patches(8, 3, 1000), patches(6, 3, 1000), patches(6, 2, 4000)
PLAIN = {"lift": 0}
LIKELY = {"lift": 0, "scores": "likelihood"}


@dataclass(frozen=True)
class Stream:
    """A scenario, the features of all methods, and the readout's own settings."""

    scenario: str
    arguments: tuple[str, ...]
    readout: dict[str, Any]
    features: dict[str, Any]
    peers: tuple[str, ...] = ()

    def runs(self, name: str, methods: list[str], seeds: int) -> list[Run]:
        settings = {"readout": {**self.readout, **self.features}}
        settings |= {peer: {**PEERS[peer], **self.features} for peer in self.peers}
        return [
            Run(
                {"study": "readout", "stream": name},
                self.scenario,
                method,
                seed,
                self.arguments,
                settings[method],
            )
            for seed in range(seeds)
            for method in settings
            if method in methods
        ]


ALL = tuple(PEERS)
STREAMS = {
    f"mnist-{tasks}{ending}": Stream(
        "disjoint-mnist", ("--tasks", str(tasks)), settings, features, ALL if tasks == 10 else ()
    )
    for tasks in (2, 5, 10)
    for ending, settings, features in (("", COSINES, {}), ("-patches", LIKELY, MNIST))
} | {
    "fashion-10": Stream("disjoint-fashion", ("--tasks", "10"), COSINES, {}),
    "fashion-10-patches": Stream(
        "disjoint-fashion", ("--tasks", "10"), PLAIN, FASHION, ("ncm", "slda", "klda")
    ),
    "cifar100": Stream("split-cifar100", ("--single-head",), LIKELY, CIFAR, ALL),
    "clinc150": Stream("clinc150", (), RELUS, {}, ALL),
}
METHODS = ("ncm", "slda", "klda", "ranpac", "acil", "readout")


def tables(table: Table) -> str:
    """One row per stream, one column per method; the best in bold."""
    rows = []
    for stream in STREAMS:
        values = {
            m: table.values("accuracy", study="readout", stream=stream, method=m) for m in METHODS
        }
        means = {m: sum(v) / len(v) for m, v in values.items() if v}
        if not means:
            continue
        best = max(means.values())
        cells = []
        for method in METHODS:
            text = mean_and_std(values[method])
            is_best = len(means) > 1 and means.get(method, 0.0) > best - 0.005
            cells.append(f"**{text}**" if is_best else text)
        rows.append([stream, *cells])
    return markdown(["stream", *METHODS], rows)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/readout.csv")
    choices(parser, "--streams", STREAMS)
    choices(parser, "--methods", METHODS)
    parser.add_argument("--runs", type=Path, help="folder of all outputs (default: beside --out)")
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    failures = 0
    if not asked.table:
        runs = [
            run
            for name in asked.streams
            for run in STREAMS[name].runs(name, asked.methods, asked.seeds or 5)
        ]
        folder = asked.runs or asked.out.with_suffix("")
        failures = run_missing(table, runs, find_device(asked.device), folder, asked.tiny)
        if failures:
            say(f"{failures} runs failed; run the same command again to repeat them")
    print(tables(table))
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
