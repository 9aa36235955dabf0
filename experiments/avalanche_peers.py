"""Avalanche's EWC, SI, LwF and GEM beside the shield as its plugin: ten classes, two at a time.

    python experiments/avalanche_peers.py --out results/avalanche
    python experiments/avalanche_page.py results/avalanche docs/integrations.md

One head of ten outputs, no task label. Network, optimizer, epochs, batches and seeds are the same
for all. Strengths of the others are chosen from a grid, on a fifth of the training images that is
held out for that, with a seed that is not reported; the shield is given nothing. Every finished run
is written to OUT/results.json at once: started again, the script goes on where it was stopped.
Avalanche 0.6 or later must be installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.training.plugins import (
    EvaluationPlugin,
    EWCPlugin,
    GEMPlugin,
    LwFPlugin,
    ReplayPlugin,
    SupervisedPlugin,
    SynapticIntelligencePlugin,
)
from avalanche.training.supervised import JointTraining, Naive
from scipy.optimize import nnls  # type: ignore[import-untyped]
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from conceptors import Readout, Shield
from conceptors._internal.files import write_atomically
from conceptors.experiments.machine import environment
from conceptors.experiments.scenarios.data import load
from conceptors.integrations.avalanche import ReadoutPlugin, ShieldPlugin

CLASSES, AT_ONCE, BATCH = 10, 2, 32
TRIAL_SEED = 100  # settings are chosen with it, and none of the reported runs has it
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW, rate 0.001": lambda weights: torch.optim.AdamW(weights, lr=1e-3),
    "SGD, rate 0.1": lambda weights: torch.optim.SGD(weights, lr=0.1),
}


class Samples(NamedTuple):
    """Inputs `[n, ...]` and labels `[n]`."""

    x: Tensor
    y: Tensor

    def where(self, chosen: Tensor) -> Samples:
        return Samples(self.x[chosen], self.y[chosen])


def digits() -> tuple[Samples, Samples]:
    """Training and test images of scikit-learn, 64 pixels; every fourth is for testing."""
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    every, test = Samples(x.float() / 16, y), torch.arange(len(x)) % 4 == 0
    return every.where(~test), every.where(test)


def cifar() -> tuple[Samples, Samples]:
    """The first ten classes of CIFAR-100, 3 x 32 x 32 pixels from -2 to 2."""
    found = load("cifar100")
    both = (found.train_x, found.train_y), (found.test_x, found.test_y)
    train, test = (Samples(x[y < CLASSES], y[y < CLASSES].long()) for x, y in both)
    return Samples(train.x / 63.75 - 2, train.y), Samples(test.x / 63.75 - 2, test.y)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, CLASSES))


def convolutional() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    layers += [nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, CLASSES)]
    return nn.Sequential(*layers)


class Stream(NamedTuple):
    title: str
    samples: Callable[[], tuple[Samples, Samples]]
    network: Callable[[], nn.Module]
    epochs: int  # per task


STREAMS = {
    "digits": Stream("digits, perceptron 64-512-10", digits, perceptron, 10),
    "cifar": Stream("CIFAR-100's first ten classes, small CNN", cifar, convolutional, 5),
}


# --- methods -------------------------------------------------------------------------------


class GEMWithoutQuadprog(GEMPlugin):  # type: ignore[misc]
    """Avalanche's GEM; its quadratic programme, of one unknown per task, is solved by scipy."""

    def solve_quadprog(self, g: Tensor) -> Tensor:
        """The step g + v G with v that makes ½ v'(GG' + 0.001)v + v'Gg least, v ≥ strength."""
        gradients = self.G.double().numpy()  # [tasks, parameters]
        square = gradients @ gradients.T + 1e-3 * np.eye(len(gradients))
        least = np.full(len(gradients), float(self.memory_strength))
        linear = gradients @ g.double().numpy() + square @ least
        root = np.linalg.cholesky(square)
        beyond, _ = nnls(root.T, -np.linalg.solve(root, linear))
        return g + torch.from_numpy((least + beyond) @ gradients).float()


def copied_weights(model: nn.Module, target: dict[str, Any], excluded: set[str]) -> None:
    """As Avalanche's `extract_weights`, but a copy."""
    for name, weight in SynapticIntelligencePlugin.allowed_parameters(model, excluded):
        target[name].data = weight.detach().cpu().flatten().clone()


# On a CPU, Avalanche 0.6 keeps views of the weights themselves: old and new ones never differ, all
# importances are 0 and SI does nothing. It is called by the class's name: a subclass would not do.
SynapticIntelligencePlugin.extract_weights = staticmethod(copied_weights)


class FirstTaskOnly(SupervisedPlugin):  # type: ignore[misc]
    """A control: what the first task has made of the body stays as it is."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self.body.requires_grad_(False)


Plugins = Callable[..., list[Any]]  # of a model and settings


def avalanches(plugin: Callable[..., Any]) -> Plugins:
    return lambda model, **settings: [plugin(**settings)]


def gem(samples: int) -> Plugins:
    """How many samples may be stored is no strength to choose: more is always better."""
    return lambda model, **settings: [GEMWithoutQuadprog(samples, **settings)]


def shielded(model: Any) -> list[Any]:
    """Ours: nothing is chosen."""
    return [ShieldPlugin(Shield(model))]


def read_out(model: Any) -> list[Any]:
    return [ReadoutPlugin(Readout(model[-1].in_features), model[:-1])]


class Method(NamedTuple):
    """Plugins of Avalanche's strategies, and the values that are tried for their settings."""

    title: str
    plugins: Plugins = lambda model: []
    grid: Mapping[str, Sequence[float]] = MappingProxyType({})


_EWC = {"ewc_lambda": [1, 1e2, 1e4, 1e6, 1e8]}
_SI = {"si_lambda": [1, 1e2, 1e4, 1e6, 1e8]}
_LWF = {"alpha": [0.3, 1.0, 3.0, 10.0], "temperature": [1.0, 2.0]}
_GEM = {"memory_strength": [0, 0.5, 1]}
METHODS = {
    "naive": Method("Naive"),
    "ewc": Method("EWC", avalanches(EWCPlugin), _EWC),
    "si": Method("SynapticIntelligence", avalanches(SynapticIntelligencePlugin), _SI),
    "lwf": Method("LwF", avalanches(LwFPlugin), _LWF),
    "gem-32": Method("GEM, 32 per task", gem(32), _GEM),
    "gem-128": Method("GEM, 128 per task", gem(128), _GEM),
    "replay": Method("Replay", avalanches(ReplayPlugin), {"mem_size": [200]}),
    "shield": Method("ShieldPlugin", shielded),
    "shield-readout": Method(
        "ShieldPlugin, ReadoutPlugin", lambda model: shielded(model) + read_out(model)
    ),
    "readout": Method("ReadoutPlugin alone", read_out),
    "ewc-readout": Method(
        "EWC, ReadoutPlugin",
        lambda model, **settings: [EWCPlugin(**settings), *read_out(model)],
        _EWC,
    ),
    "first-readout": Method(
        "body of the first task, ReadoutPlugin",
        lambda model: [FirstTaskOnly(model[:-1]), *read_out(model)],
    ),
    "joint": Method("JointTraining"),
}
OURS = ["shield", "shield-readout"]


def stored_samples(plugin: Any) -> int:
    """Samples that a plugin has kept of earlier tasks."""
    if isinstance(plugin, GEMPlugin):
        return sum(map(len, plugin.memory_x.values()))
    return len(plugin.storage_policy.buffer) if isinstance(plugin, ReplayPlugin) else 0


def learn(
    stream: Stream,
    method: str,
    optimizer: str,
    seed: int,
    train: Samples,
    test: Samples,
    *,
    epochs: int,
    settings: dict[str, float],
) -> dict[str, Any]:
    """Accuracies in percent on every task after every task, and what it took."""
    torch.manual_seed(seed)
    model = stream.network()
    plugins = METHODS[method].plugins(model, **settings)
    strategy = (JointTraining if method == "joint" else Naive)(
        model=model,
        optimizer=OPTIMIZERS[optimizer](model.parameters()),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=epochs,
        plugins=plugins,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    answers: nn.Module = model
    for plugin in plugins:
        if isinstance(plugin, ReadoutPlugin):
            answers = nn.Sequential(plugin.body, plugin.readout)
    experiences = class_incremental(train).train_stream
    accuracy, seconds = [], 0.0
    for part in [experiences] if method == "joint" else experiences:
        began = time.process_time()  # of this process alone: others on the machine do not count
        strategy.train(part)
        seconds += time.process_time() - began
        accuracy.append(accuracies(answers.eval(), test))
    return {
        "final_accuracy": round(statistics.mean(accuracy[-1]), 3),
        "forgetting": None if method == "joint" else round(forgetting(accuracy), 3),
        "accuracy": accuracy,
        "seconds": round(seconds, 3),
        "stored_samples": sum(map(stored_samples, plugins)),
        "settings": settings,
    }


def class_incremental(train: Samples) -> Any:
    """Classes 0 and 1, then 2 and 3, and so on; all with the same task label."""
    data: Any = TensorDataset(*train)
    data.targets = train.y.tolist()
    return nc_benchmark(
        *(data, data),  # the second would be for testing, which is done without Avalanche
        n_experiences=CLASSES // AT_ONCE,
        task_labels=False,
        fixed_class_order=list(range(CLASSES)),
    )


@torch.no_grad()
def accuracies(model: nn.Module, test: Samples) -> list[float]:
    """On each task, in percent; all ten classes compete."""
    right = (model(test.x).argmax(1) == test.y).double()
    tasks = test.y // AT_ONCE
    return [round(100 * float(right[tasks == t].mean()), 3) for t in range(CLASSES // AT_ONCE)]


def forgetting(accuracy: list[list[float]]) -> float:
    """How far the tasks before the last are below their best, on average."""
    before = range(len(accuracy) - 1)
    return statistics.mean(max(row[t] for row in accuracy) - accuracy[-1][t] for t in before)


class Ledger:
    """What was found so far, in one file that is whole after every run."""

    def __init__(self, path: Path, setup: dict[str, Any]) -> None:
        self.path = path
        self.held: dict[str, Any] = {"schema": 1, "setup": setup, "trials": [], "runs": []}
        if path.exists():
            self.held = json.loads(path.read_text("utf-8"))
            if self.held["setup"] != setup:
                raise ValueError(
                    f"{path} was made with {self.held['setup']}, not {setup}; give another --out"
                )
        path.parent.mkdir(parents=True, exist_ok=True)

    def find(self, kind: str, **key: Any) -> dict[str, Any] | None:
        """The trial or run of this key."""
        rows = (row for row in self.held[kind] if row | key == row)
        return next(rows, None)

    def add(self, kind: str, row: dict[str, Any]) -> None:
        self.held[kind].append(row)
        self.held["titles"] = {name: one.title for name, one in (STREAMS | METHODS).items()}
        self.held["ours"] = OURS
        here = environment(torch.device("cpu"))
        self.held["environment"] = {**here, "avalanche": version("avalanche-lib")}
        text = json.dumps(self.held, indent=1, ensure_ascii=False)
        write_atomically(self.path, f"{text}\n".encode())


def choose(
    ledger: Ledger, stream: str, method: str, optimizer: str, train: Samples, epochs: int
) -> dict[str, float]:
    """The settings with the highest accuracy on validation images; test images are not seen."""
    grid = METHODS[method].grid
    tried = [dict(zip(grid, values)) for values in product(*grid.values())]
    if len(tried) == 1:
        return tried[0]
    held_out = torch.arange(len(train.x)) % 5 == 0
    scores = []
    for settings in tried:
        key = {"stream": stream, "optimizer": optimizer, "method": method, "settings": settings}
        row = ledger.find("trials", **key)
        if row is None:
            parts = train.where(~held_out), train.where(held_out)
            found = learn(
                *(STREAMS[stream], method, optimizer, TRIAL_SEED, *parts),
                epochs=epochs,
                settings=settings,
            )
            row = {**key, "validation": found["final_accuracy"], "seconds": found["seconds"]}
            ledger.add("trials", row)
            say(stream, optimizer, f"{method} {settings}: {row['validation']:.1f} % validation")
        scores.append(row["validation"])
    return tried[scores.index(max(scores))]


def say(*words: str) -> None:
    print(time.strftime("%H:%M:%S"), *words, sep="  ", flush=True)


def first_of_each_class(samples: Samples, count: int | None) -> Samples:
    places = [torch.nonzero(samples.y == label)[:count, 0] for label in range(CLASSES)]
    return samples.where(torch.cat(places).sort().values)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stream", action="append", choices=STREAMS, help="default: all")
    parser.add_argument("--method", action="append", choices=METHODS, help="default: all")
    usual = next(iter(OPTIMIZERS))
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=usual, help="of all methods")
    parser.add_argument("--seeds", type=int, default=5, help="from 0 (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="per task (default: digits 10, cifar 5)")
    parser.add_argument("--limit", type=int, help="training images per class (default: all)")
    parser.add_argument("--out", type=Path, default=Path("results/avalanche"))
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", module="avalanche")
    torch.set_num_threads(1)  # so that seconds of all methods compare
    setup = {
        "batch": BATCH,
        "limit": options.limit,
        "epochs": {name: options.epochs or one.epochs for name, one in STREAMS.items()},
    }
    ledger = Ledger(options.out / "results.json", setup)
    for stream in options.stream or STREAMS:
        epochs = options.epochs or STREAMS[stream].epochs
        train, test = STREAMS[stream].samples()
        train = first_of_each_class(train, options.limit)
        chosen = {
            method: choose(ledger, stream, method, options.optimizer, train, epochs)
            for method in options.method or METHODS
        }
        for seed in range(options.seeds):  # methods inside: their seconds are of the same minutes
            for method, settings in chosen.items():
                key = {"stream": stream, "optimizer": options.optimizer, "method": method}
                if ledger.find("runs", **key, seed=seed) is not None:
                    continue
                found = learn(
                    *(STREAMS[stream], method, options.optimizer, seed, train, test),
                    epochs=epochs,
                    settings=settings,
                )
                ledger.add("runs", {**key, "seed": seed, **found})
                took = f"{found['final_accuracy']:.1f} %, {found['seconds']:.1f} s"
                say(stream, options.optimizer, f"{method}, seed {seed}: {took}")


if __name__ == "__main__":
    main()
