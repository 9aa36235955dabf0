"""The shield with accelerate: guarded before or after `prepare`, resumed bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Shield
from integrations.common import Net, accuracy, drift, everything, outputs, same, task

accelerate: Any = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Reset accelerate's state, which is of the process and outlives an Accelerator."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class Run:
    """A model, its optimizer and its shield, guarded before or after they are prepared."""

    def __init__(self, after: bool, options: dict[str, Any]) -> None:
        self.accelerator = accelerate.Accelerator(cpu=True)
        self.net = Net()
        optimizer: Any = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        if not after:
            self.shield = Shield(self.net, **options)
            optimizer = self.shield.guard(optimizer, between=self.clip)
        self.model, self.optimizer = self.accelerator.prepare(self.net, optimizer)
        if after:
            self.shield = Shield(self.model, **options)
            assert self.shield.guard(self.optimizer, between=self.clip) is self.optimizer
        self.accelerator.register_for_checkpointing(self.shield)

    def clip(self) -> None:
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)

    def loader(self, number: int) -> Any:
        data: DataLoader[Any] = DataLoader(TensorDataset(*task(number)), batch_size=8)
        return self.accelerator.prepare(data)

    def train(self, number: int, epochs: int) -> None:
        for _ in range(epochs):
            for x, labels in self.loader(number):
                self.optimizer.zero_grad()
                self.accelerator.backward(nn.functional.cross_entropy(self.model(x), labels))
                self.optimizer.step()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_two_tasks(after: bool) -> None:
    run = Run(after, {"aperture": 1e4, "hard": True})
    run.train(1, 10)
    run.shield.remember(run.loader(1))
    before = outputs(run.net, 1)
    assert accuracy(run.net, 1) > 0.9
    run.train(2, 10)
    assert drift(before, outputs(run.net, 1)) < 1e-5
    assert accuracy(run.net, 2) > 0.8


@pytest.mark.parametrize("options", [{}, {"aperture": 3.0, "increment_decay": 0.1}], ids=str)
def test_a_checkpoint_in_the_middle_of_a_task(tmp_path: Path, options: dict[str, Any]) -> None:
    run = Run(True, options)
    run.train(1, 4)
    run.shield.remember(run.loader(1))
    run.train(2, 2)
    run.accelerator.save_state(str(tmp_path))
    run.train(2, 2)
    run.shield.remember(run.loader(2))
    again = Run(True, options)
    again.accelerator.load_state(str(tmp_path))
    assert again.shield.n_tasks == 1
    again.train(2, 2)
    again.shield.remember(again.loader(2))
    assert same(everything(again.net, again.shield), everything(run.net, run.shield))
