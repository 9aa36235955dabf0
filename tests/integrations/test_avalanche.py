"""The shield in Avalanche's own strategies, on streams of its own benchmarks."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from conceptors import Readout, Shield
from integrations.absent import stand_ins
from integrations.trainers import CLASSES, DIM, task

pytest.importorskip("torchmetrics")  # before the stand-ins: it looks what is there
with warnings.catch_warnings(), stand_ins():
    warnings.simplefilter("ignore")
    avalanche: Any = pytest.importorskip("avalanche")
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
    from avalanche.training.supervised import Naive

    from conceptors.integrations.avalanche import ReadoutPlugin, ShieldPlugin

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


def experience(number: int, first_class: int = 0) -> Any:
    """A task as a data set of Avalanche."""
    x, y = task(number)
    data: Any = TensorDataset(x, y + first_class)
    data.targets = (y + first_class).tolist()
    return as_classification_dataset(data)


def strategy_of(model: nn.Module, *plugins: Any) -> Any:
    return Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=8,
        train_epochs=10,
        device="cpu",
        plugins=list(plugins),
        evaluator=EvaluationPlugin(loggers=[]),
    )


def two_tasks(second: int = 0) -> Any:
    """A benchmark of two experiences; classes of the second start there."""
    data = [experience(1), experience(2, second)]
    return with_classes_timeline(benchmark_from_datasets(train=data))


class Evaluated(SupervisedPlugin):  # type: ignore[misc]
    """Records outputs and losses when a strategy evaluates."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []
        self.losses: list[float] = []

    def after_eval_iteration(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self.outputs.append(strategy.mb_output)
        self.losses.append(float(strategy.loss))


def wide() -> nn.Sequential:
    """One head for the classes of both tasks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(DIM, 32), nn.Linear(32, 2 * CLASSES))


def test_a_readout_answers_for_all_classes() -> None:
    model, seen = wide(), Evaluated()
    shield = Shield(model, aperture=1e4, hard=True)
    readout = Readout(32)
    plugins = [ShieldPlugin(shield), ReadoutPlugin(readout, model[:-1]), seen]
    strategy = strategy_of(model, *plugins)
    stream = two_tasks(CLASSES).train_stream
    strategy.eval(stream[0])  # nothing learned yet: the network's own outputs
    strategy.train(stream[0])
    seen.outputs.clear()
    strategy.eval(stream[1])  # classes that the readout does not know
    outputs = torch.cat(seen.outputs)
    assert outputs.shape == (48, 2 * CLASSES)
    assert int(outputs.argmax(1).max()) < CLASSES
    assert torch.tensor(seen.losses).isfinite().all()
    strategy.train(stream[1])
    assert readout.n_samples == 96
    for number, first in ((1, 0), (2, CLASSES)):
        x, labels = task(number)
        right = readout.predict(model[:-1](x)) == labels + first
        assert float(right.float().mean()) > 0.7
    seen.outputs.clear()
    strategy.eval(stream[1])
    assert torch.cat(seen.outputs).argmax(1).unique().tolist()[-1] >= CLASSES


def test_only_the_classes_of_an_experience_compete() -> None:
    model = wide()
    head: Any = model[1]
    stream = two_tasks(CLASSES).train_stream
    before = head.weight.detach().clone()
    strategy = strategy_of(model, ReadoutPlugin(Readout(32), model[:-1]))
    strategy.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy.train(stream[0])
    moved = (head.weight.detach() - before).norm(dim=1)
    assert float(moved[:CLASSES].min()) > 0.01
    assert torch.equal(head.weight[CLASSES:], before[CLASSES:])  # outputs of no class here
