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
from integrations.common import Net, accuracy, drift, everything, near, outputs, same, task

accelerate: Any = pytest.importorskip("accelerate")


def reset() -> None:
    """Its state is of the process, and so outlives an Accelerator."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    reset()


class Run:
    """A model, its optimizer and its shield, guarded before or after they are prepared."""

    def __init__(self, after: bool, options: dict[str, Any], **more: Any) -> None:
        self.accelerator = accelerate.Accelerator(cpu=True, **more)
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

    def loader(self, number: int, size: int = 8) -> Any:
        data: DataLoader[Any] = DataLoader(TensorDataset(*task(number)), batch_size=size)
        return self.accelerator.prepare(data)

    def train(self, number: int, epochs: int, size: int = 8) -> None:
        for _ in range(epochs):
            for x, labels in self.loader(number, size):
                with self.accelerator.accumulate(self.model):
                    loss = nn.functional.cross_entropy(self.model(x), labels)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.optimizer.zero_grad()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_two_tasks(after: bool, precision: str) -> None:
    half = precision == "bf16"
    options = {"aperture": 30.0 if half else 1e4, "hard": True}
    run = Run(after, options, mixed_precision=precision)
    run.train(1, 10)
    run.shield.remember(run.loader(1))
    before = outputs(run.net, 1)
    assert accuracy(run.net, 1) > 0.9
    run.train(2, 10)
    assert drift(before, outputs(run.net, 1)) < (1e-2 if half else 1e-5)
    assert accuracy(run.net, 2) > 0.8


def test_accumulated_gradients_are_those_of_large_batches() -> None:
    found = []
    for size, steps in ((8, 1), (4, 2)):
        reset()
        run = Run(True, {"aperture": 3.0}, gradient_accumulation_steps=steps)
        run.optimizer.param_groups[0]["eps"] = 1e-3  # or it would divide rounding by itself
        for number in (1, 2):
            run.train(number, 4, size)
            run.shield.remember(run.loader(number))
        found.append(everything(run.net, run.shield))
    assert near(found[0], found[1], 1e-3)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("options", [{}, {"aperture": 3.0, "increment_decay": 0.1}], ids=str)
def test_a_checkpoint_in_the_middle_of_a_task(
    tmp_path: Path, after: bool, options: dict[str, Any]
) -> None:
    run = Run(after, options)
    run.train(1, 4)
    run.shield.remember(run.loader(1))
    run.train(2, 2)
    run.accelerator.save_state(str(tmp_path))
    run.train(2, 2)
    run.shield.remember(run.loader(2))
    again = Run(after, options)
    again.accelerator.load_state(str(tmp_path))
    assert again.shield.n_tasks == 1
    again.train(2, 2)
    again.shield.remember(again.loader(2))
    assert same(everything(again.net, again.shield), everything(run.net, run.shield))
