"""Avalanche's strategies beside the plugins: ten digits, two at a time, one head, no task ID.

Network, optimizer, epochs, batches and seeds are the same for all. Strengths of EWC, SI and LwF are
chosen on a fifth of the training images with seed 100; the plugins of this library use default
settings.

    python -m benchmarks.avalanche                       # run what results/avalanche.csv lacks
    python -m benchmarks.avalanche --methods naive shield --seeds 1 --out out/avalanche.csv
    python -m benchmarks.avalanche --table               # print the table

An empty table takes a quarter of an hour on one CPU core. Needs: pip install avalanche-lib
"""

from __future__ import annotations

import time
import warnings
from itertools import product
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import common
from benchmarks.common import Row, Table, words
from benchmarks.untuned import digits, mlp
from conceptors import Readout, Shield

Part = tuple[Tensor, Tensor]  # inputs and labels
KEY = ("part", "stream", "method", "seed", "settings")
CLASSES, AT_ONCE, EPOCHS, BATCH, TRIAL_SEED = 10, 2, 10, 32, 100
METHODS: dict[str, tuple[str, dict[str, list[float]]]] = {  # title, settings to try
    "naive": ("Naive", {}),
    "ewc": ("EWC", {"ewc_lambda": [1, 1e2, 1e4, 1e6, 1e8]}),
    "si": ("SynapticIntelligence", {"si_lambda": [1, 1e2, 1e4, 1e6, 1e8]}),
    "lwf": ("LwF", {"alpha": [0.3, 1.0, 3.0, 10.0], "temperature": [1.0, 2.0]}),
    "replay": ("Replay", {"mem_size": [200]}),
    "shield": ("**ShieldPlugin**", {}),
    "shield-readout": ("**ShieldPlugin, ReadoutPlugin**", {}),
    "readout": ("ReadoutPlugin alone", {}),
    "joint": ("JointTraining", {}),
}


def digit_parts() -> tuple[Part, Part]:
    train, validation, test = digits("0-1")
    return (torch.cat([train[0], validation[0]]), torch.cat([train[1], validation[1]])), test


# --- plugins ------------------------------------------------------------------------------


def plugins_of(method: str, model: nn.Sequential, settings: dict[str, float]) -> list[Any]:
    from avalanche.training import plugins as avalanche

    from conceptors.integrations.avalanche import ReadoutPlugin, ShieldPlugin

    plugins: list[Any] = []
    if method == "ewc":
        plugins.append(avalanche.EWCPlugin(**settings))
    elif method == "si":
        plugins.append(working_si(**settings))
    elif method == "lwf":
        plugins.append(avalanche.LwFPlugin(**settings))
    elif method == "replay":
        plugins.append(avalanche.ReplayPlugin(mem_size=int(settings["mem_size"])))
    elif method.startswith("shield"):
        plugins.append(ShieldPlugin(Shield(model)))
    if method.endswith("readout"):
        head: Any = model[-1]
        plugins.append(ReadoutPlugin(Readout(head.in_features), model[:-1]))
    return plugins


def working_si(**settings: float) -> Any:
    """Avalanche 0.6 compares views of the weights with themselves on a CPU; this copies them."""
    from avalanche.training.plugins import SynapticIntelligencePlugin

    def copied(model: nn.Module, target: dict[str, Any], excluded: set[str]) -> None:
        for name, weight in SynapticIntelligencePlugin.allowed_parameters(model, excluded):
            target[name].data = weight.detach().cpu().flatten().clone()

    SynapticIntelligencePlugin.extract_weights = staticmethod(copied)  # it is called by class
    return SynapticIntelligencePlugin(**settings)


# --- runs ---------------------------------------------------------------------------------


def learn(method: str, settings: dict[str, float], seed: int, parts: tuple[Part, Part]) -> Row:
    """Train with one method and return the columns of its row after the key."""
    from avalanche.benchmarks import nc_benchmark
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import JointTraining, Naive

    (x, y), test = parts
    torch.manual_seed(seed)
    model = mlp(x.shape[1], 512, CLASSES)
    plugins = plugins_of(method, model, settings)
    strategy = (JointTraining if method == "joint" else Naive)(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=EPOCHS,
        plugins=plugins,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    data: Any = torch.utils.data.TensorDataset(x, y)
    data.targets = y.tolist()
    order = list(range(CLASSES))
    tasks = CLASSES // AT_ONCE
    experiences = nc_benchmark(
        data, data, n_experiences=tasks, task_labels=False, fixed_class_order=order
    ).train_stream
    readouts = [plugin for plugin in plugins if hasattr(plugin, "readout")]
    answers = nn.Sequential(readouts[0].body, readouts[0].readout) if readouts else model
    after: list[list[float]] = []
    seconds = 0.0
    for part in [experiences] if method == "joint" else experiences:
        start = time.process_time()
        strategy.train(part)
        seconds += time.process_time() - start
        after.append(accuracies(answers.eval(), test))
    best = [max(row[task] for row in after) for task in range(tasks)]
    lost = [best[task] - after[-1][task] for task in range(len(after) - 1)]
    return {
        "accuracy": round(mean(after[-1]), 3),
        "forgetting": round(mean(lost), 3) if lost else "",
        "final_accuracies": common.numbers(after[-1]),
        "stored_samples": sum(map(stored_samples, plugins)),
        "seconds": round(seconds, 3),
    }


@torch.no_grad()
def accuracies(model: nn.Module, test: Part) -> list[float]:
    """Return the accuracy on each task in percent; all ten classes compete."""
    right = (model(test[0]).argmax(1) == test[1]).double()
    tasks = test[1] // AT_ONCE
    return [100 * float(right[tasks == task].mean()) for task in range(CLASSES // AT_ONCE)]


def stored_samples(plugin: Any) -> int:
    return len(plugin.storage_policy.buffer) if hasattr(plugin, "storage_policy") else 0


def run(table: Table, part: str, method: str, settings: Any, seed: int, parts: Any) -> None:
    """Add one run to the table unless it is in it."""
    key = {"part": part, "stream": "digits", "method": method, "seed": seed}
    key["settings"] = words(settings)
    if key not in table:
        row = learn(method, settings, seed, parts)
        environment = common.environment(torch.device("cpu"))
        table.add({**key, "optimizer": "AdamW, rate 0.001", **row, **environment})
        common.say(f"{part}, {method} {key['settings']}, seed {seed}: {row['accuracy']:.1f}")


def choose(table: Table, method: str, parts: tuple[Part, Part]) -> dict[str, float]:
    """Choose the settings with the highest accuracy on a fifth of the training images."""
    grid = METHODS[method][1]
    tried = [dict(zip(grid, values)) for values in product(*grid.values())]
    if len(tried) == 1:
        return tried[0]
    x, y = parts[0]
    is_held_out = torch.arange(len(x)) % 5 == 0
    split = ((x[~is_held_out], y[~is_held_out]), (x[is_held_out], y[is_held_out]))
    scores = []
    for settings in tried:
        run(table, "validation", method, settings, TRIAL_SEED, split)
        here = {"part": "validation", "method": method, "settings": words(settings)}
        scores.append(table.values("accuracy", **here)[0])
    return tried[scores.index(max(scores))]


def tables(table: Table) -> str:
    """One line per method; time is the median ratio to Naive with the same seed."""
    tested = [row for row in table.rows if row["part"] == "test"]
    naive = {row["seed"]: float(row["seconds"]) for row in tested if row["method"] == "naive"}
    lines = []
    for method, (title, _) in METHODS.items():
        rows = [row for row in tested if row["method"] == method]
        times = [float(row["seconds"]) / naive[row["seed"]] for row in rows if row["seed"] in naive]
        cells = [
            common.mean_and_std([float(row[name]) for row in rows if row[name] != ""], 1)
            for name in ("accuracy", "forgetting")
        ]
        stored = max((int(row["stored_samples"]) for row in rows), default=0)
        cells.append("all" if method == "joint" else str(stored))
        cells.append(f"{median(times):.1f} ×" if times else "–")
        lines += [[title, *cells, rows[0]["settings"] or "–"]] if rows else []
    heading = ["method", "accuracy", "forgetting", "stored samples", "time", "settings"]
    return common.markdown(heading, lines)


def main(arguments: list[str] | None = None) -> int:
    parser = common.options(__doc__, "results/avalanche.csv")
    common.choices(parser, "--methods", METHODS)
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    if not asked.table:
        warnings.filterwarnings("ignore", module="avalanche")
        torch.set_num_threads(1)  # to compare times
        parts = digit_parts()
        if asked.tiny:
            parts = ((parts[0][0][:200], parts[0][1][:200]), parts[1])
        chosen = {method: choose(table, method, parts) for method in asked.methods}
        for seed in range(asked.seeds or 5):
            for method, settings in chosen.items():
                run(table, "test", method, settings, seed, parts)
    print(tables(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
