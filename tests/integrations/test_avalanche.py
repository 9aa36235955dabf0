"""The shield in Avalanche's own strategies, on streams of its own benchmarks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from conceptors import Shield
from integrations.absent import stand_ins
from integrations.common import CLASSES, DIM, Net, accuracy, drift, task

pytest.importorskip("torchmetrics")  # before the stand-ins: it looks what is there
with warnings.catch_warnings(), stand_ins():
    warnings.simplefilter("ignore")
    avalanche: Any = pytest.importorskip("avalanche")
    from avalanche.benchmarks import (
        benchmark_from_datasets,
        task_incremental_benchmark,
        with_classes_timeline,
    )
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import IncrementalClassifier, MultiHeadClassifier, MultiTaskModule
    from avalanche.training.plugins import EvaluationPlugin
    from avalanche.training.supervised import Naive

    from conceptors.integrations.avalanche import ShieldPlugin

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


def experience(number: int, first_class: int = 0) -> Any:
    """A task as a data set of Avalanche."""
    x, y = task(number)
    data: Any = TensorDataset(x, y + first_class)
    data.targets = (y + first_class).tolist()
    return as_classification_dataset(data)


def learn(model: nn.Module, stream: Any, *plugins: Any, **more: Any) -> list[Tensor]:
    """Outputs for the first task after each experience."""
    strategy = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=8,
        train_epochs=10,
        device="cpu",
        plugins=list(plugins),
        evaluator=EvaluationPlugin(loggers=[]),
    )
    found = []
    for one in stream:
        strategy.train(one)
        with torch.no_grad():
            found.append(model.eval()(task(1)[0], **more)[:, :CLASSES])
    return found


def two_tasks(second: int = 0) -> Any:
    """A benchmark of two experiences; classes of the second start there."""
    data = [experience(1), experience(2, second)]
    return with_classes_timeline(benchmark_from_datasets(train=data))


def test_two_experiences() -> None:
    model = Net()
    shield = Shield(model, aperture=1e4, hard=True)
    assert drift(*learn(model, two_tasks().train_stream, ShieldPlugin(shield))) < 1e-5
    assert shield.n_tasks == 2
    assert accuracy(model, 1) > 0.9
    assert accuracy(model, 2) > 0.8


def test_without_the_plugin_the_first_is_lost() -> None:
    assert drift(*learn(Net(), two_tasks().train_stream)) > 0.3


class Growing(nn.Module):
    """A head that gets outputs when their classes come."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(DIM, 32)
        self.head = IncrementalClassifier(32, initial_out_features=1, masking=False)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.body(x))


def test_a_head_that_grows() -> None:
    model = Growing()
    shield = Shield(model, aperture=1e4, hard=True)
    assert drift(*learn(model, two_tasks(CLASSES).train_stream, ShieldPlugin(shield))) < 1e-5
    assert model.head.classifier.out_features == 2 * CLASSES
    x, labels = task(2)
    assert float((model(x).argmax(1) == labels + CLASSES).float().mean()) > 0.7


class Heads(MultiTaskModule):  # type: ignore[misc]
    """A head for each task label, made when it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(DIM, 32)
        self.heads = MultiHeadClassifier(32, CLASSES, masking=False)

    def forward(self, x: Tensor, task_labels: Any) -> Any:
        return self.heads(self.body(x), task_labels)


def test_models_that_take_task_labels() -> None:
    model = Heads()
    shield = Shield(model, aperture=1e4, hard=True)
    stream = with_classes_timeline(task_incremental_benchmark(two_tasks())).train_stream
    found = learn(model, stream, ShieldPlugin(shield, limit=40), task_labels=0)
    assert drift(*found) < 1e-5
    assert shield.n_tasks == 2
    assert len(shield.quota()) == 3
    assert min(shield.quota().values()) > 0  # both heads were remembered
