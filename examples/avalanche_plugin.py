"""Five tasks of two digits with Avalanche: without a plugin, with a shield, and with a readout.

One head with ten outputs, no task ID at test time, no stored images.
Run with: python examples/avalanche_plugin.py
"""

from __future__ import annotations

from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from conceptors import Readout, Shield
from conceptors.integrations.avalanche import ReadoutPlugin, ShieldPlugin

X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float() / 16  # [1797, 64]
test = torch.arange(len(X)) % 4 == 0


def experience(first: int) -> Any:
    members = (y >= first) & (y < first + 2) & ~test
    data: Any = TensorDataset(X[members], y[members])
    data.targets = y[members].tolist()
    return as_classification_dataset(data)


def learn(plugin: str) -> float:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    shield, body, readout = Shield(model), model[:-1], Readout(512)  # the body has 512 outputs
    plugins: dict[str, list[Any]] = {
        "none": [],
        "shield": [ShieldPlugin(shield)],
        "readout": [ShieldPlugin(shield), ReadoutPlugin(readout, body)],
    }
    strategy = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=32,
        train_epochs=10,
        plugins=plugins[plugin],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    benchmark = benchmark_from_datasets(train=[experience(first) for first in range(0, 10, 2)])
    for digits in benchmark.train_stream:
        strategy.train(digits)
    scores = readout(body(X[test])) if plugin == "readout" else model(X[test])
    return 100 * float((scores.argmax(1) == y[test]).float().mean())


print("plugin    test accuracy on all ten digits in %")
for name in ("none", "shield", "readout"):
    print(f"{name:10s}{learn(name):10.1f}")
