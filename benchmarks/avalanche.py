"""Avalanche's strategies beside the plugins: ten classes, two at a time, one head, no task ID.

Network, optimizer, epochs, batches and seeds are the same for all. Strengths of EWC, SI, LwF and
GEM are chosen on a fifth of the training images with seed 100; the plugins of this library use
default settings.

    python -m benchmarks.avalanche                       # run what results/avalanche.csv lacks
    python -m benchmarks.avalanche --methods naive shield --seeds 1 --out out/avalanche.csv
    python -m benchmarks.avalanche --table               # print the tables of docs/integrations.md

An empty table takes half an hour on one CPU core. Needs: pip install avalanche-lib
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import product
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import (
    Row,
    Table,
    choices,
    environment,
    find_device,
    markdown,
    mean_and_std,
    numbers,
    options,
    say,
    words,
)
from benchmarks.sequences import digits, mlp
from conceptors import Readout, Shield
from conceptors.scenarios import Split, build

Part = tuple[Tensor, Tensor]  # inputs and labels
KEY = ("part", "stream", "method", "seed", "settings")
CLASSES, AT_ONCE, BATCH, TRIAL_SEED = 10, 2, 32, 100
OPTIMIZER = "AdamW, rate 0.001"
EWC: dict[str, list[float]] = {"ewc_lambda": [1, 1e2, 1e4, 1e6, 1e8]}
GEM: dict[str, list[float]] = {"memory_strength": [0, 0.5, 1]}
METHODS: dict[str, tuple[str, dict[str, list[float]]]] = {  # title, settings to try
    "naive": ("Naive", {}),
    "ewc": ("EWC", EWC),
    "si": ("SynapticIntelligence", {"si_lambda": [1, 1e2, 1e4, 1e6, 1e8]}),
    "lwf": ("LwF", {"alpha": [0.3, 1.0, 3.0, 10.0], "temperature": [1.0, 2.0]}),
    "gem-32": ("GEM, 32 per task", GEM),
    "gem-128": ("GEM, 128 per task", GEM),
    "replay": ("Replay", {"mem_size": [200]}),
    "shield": ("**ShieldPlugin**", {}),
    "shield-readout": ("**ShieldPlugin, ReadoutPlugin**", {}),
    "readout": ("ReadoutPlugin alone", {}),
    "ewc-readout": ("EWC, ReadoutPlugin", EWC),
    "first-readout": ("body of the first task, ReadoutPlugin", {}),
    "joint": ("JointTraining", {}),
}


# --- streams ------------------------------------------------------------------------------


def digit_parts() -> tuple[Part, Part]:
    train, validation, test = digits("0-1")
    return (torch.cat([train[0], validation[0]]), torch.cat([train[1], validation[1]])), test


def cifar_parts() -> tuple[Part, Part]:
    """The first ten classes of CIFAR-100, pixels from -2 to 2."""
    task = build("split-cifar100", 0, tasks=10).tasks[0]

    def part(split: Split) -> Part:
        x, y = split.take(torch.arange(len(split)))
        return 4 * x - 2, y

    return part(task.train), part(task.test)


def small_cnn() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, CLASSES)]
    return nn.Sequential(*layers)


def perceptron() -> nn.Sequential:
    return mlp(64, 512, CLASSES)


Parts = Callable[[], tuple[Part, Part]]
STREAMS: dict[str, tuple[Parts, Callable[[], nn.Sequential], int]] = {  # data, network, epochs
    "digits": (digit_parts, perceptron, 10),
    "cifar": (cifar_parts, small_cnn, 5),
}


# --- plugins ------------------------------------------------------------------------------


def plugins_of(method: str, model: nn.Sequential, settings: dict[str, float]) -> list[Any]:
    from avalanche.training import plugins as avalanche

    from conceptors.integrations.avalanche import ReadoutPlugin, ShieldPlugin

    kind, _, ending = method.partition("-")
    plugins: list[Any] = []
    if kind == "ewc":
        plugins.append(avalanche.EWCPlugin(**settings))
    elif kind == "si":
        plugins.append(working_si(**settings))
    elif kind == "lwf":
        plugins.append(avalanche.LwFPlugin(**settings))
    elif kind == "gem":
        plugins.append(gem_by_scipy(int(ending), **settings))
    elif kind == "replay":
        plugins.append(avalanche.ReplayPlugin(mem_size=int(settings["mem_size"])))
    elif kind == "shield":
        plugins.append(ShieldPlugin(Shield(model)))
    elif kind == "first":
        plugins.append(frozen_after_the_first_task(model[:-1]))
    if "readout" in (kind, ending):
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


def gem_by_scipy(samples: int, **settings: float) -> Any:
    """Avalanche's GEM with its quadratic programme solved by scipy instead of quadprog."""
    import numpy as np
    from avalanche.training.plugins import GEMPlugin
    from scipy.optimize import nnls

    class Gem(GEMPlugin):  # type: ignore[misc]
        def solve_quadprog(self, g: Tensor) -> Tensor:
            """The step g + v G, where v ≥ strength minimises ½ v'(GG' + 0.001)v + v'Gg."""
            gradients = self.G.double().numpy()  # [tasks, parameters]
            square = gradients @ gradients.T + 1e-3 * np.eye(len(gradients))
            least = np.full(len(gradients), float(self.memory_strength))
            linear = gradients @ g.double().numpy() + square @ least
            root = np.linalg.cholesky(square)
            beyond, _ = nnls(root.T, -np.linalg.solve(root, linear))
            return g + torch.from_numpy((least + beyond) @ gradients).float()

    return Gem(samples, **settings)


def frozen_after_the_first_task(body: nn.Module) -> Any:
    """A control: only the first task trains the body."""
    from avalanche.training.plugins import SupervisedPlugin

    class Frozen(SupervisedPlugin):  # type: ignore[misc]
        def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
            body.requires_grad_(False)

    return Frozen()


# --- runs ---------------------------------------------------------------------------------


def learn(
    stream: str, method: str, settings: dict[str, float], seed: int, parts: tuple[Part, Part]
) -> Row:
    """Train with one method and return the columns of its row after the key."""
    from avalanche.benchmarks import nc_benchmark
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import JointTraining, Naive

    (x, y), test = parts
    _, network, epochs = STREAMS[stream]
    torch.manual_seed(seed)
    model = network()
    plugins = plugins_of(method, model, settings)
    strategy = (JointTraining if method == "joint" else Naive)(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=epochs,
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
        "final_accuracies": numbers(after[-1]),
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
    if hasattr(plugin, "memory_x"):
        return sum(map(len, plugin.memory_x.values()))
    return len(plugin.storage_policy.buffer) if hasattr(plugin, "storage_policy") else 0


def choose(table: Table, stream: str, method: str, parts: tuple[Part, Part]) -> dict[str, float]:
    """Choose the settings with the highest accuracy on a fifth of the training images."""
    grid = METHODS[method][1]
    tried = [dict(zip(grid, values)) for values in product(*grid.values())]
    if len(tried) == 1:
        return tried[0]
    x, y = parts[0]
    is_held_out = torch.arange(len(x)) % 5 == 0
    split = ((x[~is_held_out], y[~is_held_out]), (x[is_held_out], y[is_held_out]))
    for settings in tried:
        run(table, "validation", stream, method, settings, TRIAL_SEED, split)
    scores = [
        table.values("accuracy", part="validation", stream=stream, method=method, settings=words(s))
        for s in tried
    ]
    return tried[scores.index(max(scores))]


def run(
    table: Table,
    part: str,
    stream: str,
    method: str,
    settings: dict[str, float],
    seed: int,
    parts: tuple[Part, Part],
) -> None:
    """Add one run to the table unless it is in it."""
    key = {"part": part, "stream": stream, "method": method, "seed": seed}
    key["settings"] = words(settings)
    if key in table:
        return
    row = learn(stream, method, settings, seed, parts)
    table.add({**key, "optimizer": OPTIMIZER, **row, **environment(torch.device("cpu"))})
    say(f"{part}, {stream}, {method} {key['settings']}, seed {seed}: {row['accuracy']:.1f}")


def tables(table: Table) -> str:
    """Format one table per stream; time is the median ratio to Naive with the same seed."""
    parts = []
    for stream in STREAMS:
        tested = [row for row in table.rows if (row["part"], row["stream"]) == ("test", stream)]
        naive = {row["seed"]: float(row["seconds"]) for row in tested if row["method"] == "naive"}
        lines = []
        for method, (title, _) in METHODS.items():
            rows = [row for row in tested if row["method"] == method]
            if rows:
                here = {"part": "test", "stream": stream, "method": method}
                times = [float(r["seconds"]) / naive[r["seed"]] for r in rows if r["seed"] in naive]
                stored = max(int(row["stored_samples"]) for row in rows)
                lines.append(
                    [
                        title,
                        mean_and_std(table.values("accuracy", **here), 1),
                        mean_and_std(table.values("forgetting", **here), 1),
                        "all" if method == "joint" else str(stored),
                        f"{median(times):.1f} ×" if times else "–",
                        rows[0]["settings"] or "–",
                    ]
                )
        heading = ["method", "accuracy", "forgetting", "stored samples", "time", "settings"]
        parts.append(f"**{stream}**\n\n{markdown(heading, lines)}")
    return "\n\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    parser = options(__doc__, "results/avalanche.csv")
    choices(parser, "--streams", STREAMS)
    choices(parser, "--methods", METHODS)
    asked = parser.parse_args(arguments)
    table = Table(asked.out, KEY)
    if not asked.table:
        if find_device(asked.device).type != "cpu":
            say("Avalanche runs on one CPU thread here, to compare times; --device is ignored")
        warnings.filterwarnings("ignore", module="avalanche")
        torch.set_num_threads(1)
        for stream in asked.streams:
            parts = STREAMS[stream][0]()
            if asked.tiny:
                parts = ((parts[0][0][:200], parts[0][1][:200]), parts[1])
            chosen = {method: choose(table, stream, method, parts) for method in asked.methods}
            for seed in range(asked.seeds or 5):
                for method, settings in chosen.items():
                    run(table, "test", stream, method, settings, seed, parts)
    print(tables(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
