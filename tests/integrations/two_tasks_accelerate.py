"""Two tasks in a loop with accelerate; run by torchrun.

torchrun two_tasks_accelerate.py FOLDER: every process writes what it ends with to FOLDER.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Shield
from integrations.common import Net, drift, everything, outputs, task


class Run:
    """A model with its shield and optimizer, prepared."""

    def __init__(self) -> None:
        self.accelerator = Accelerator(cpu=True)
        self.net = Net()
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.model, self.optimizer = self.accelerator.prepare(self.net, optimizer)
        self.shield = Shield(self.model, aperture=1e4, hard=True)
        self.shield.guard(self.optimizer)
        self.accelerator.register_for_checkpointing(self.shield)

    def train(self, number: int, epochs: int) -> None:
        loader = self.accelerator.prepare_data_loader(
            DataLoader(TensorDataset(*task(number)), batch_size=4)
        )
        for _ in range(epochs):
            for x, labels in loader:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), labels)
                self.accelerator.backward(loss)
                self.optimizer.step()
        self.loader = loader


torch.set_num_threads(1)
folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
run = Run()
run.train(1, 4)
run.shield.remember(run.loader)
before = outputs(run.net, 1)
run.train(2, 2)
run.accelerator.save_state(str(folder / "middle"))
run.train(2, 2)
run.shield.remember(run.loader)
moved = drift(before, outputs(run.net, 1))
torch.save((moved, everything(run.net, run.shield)), folder / f"{rank}.pt")

run.accelerator.wait_for_everyone()
again = Run()
again.accelerator.load_state(str(folder / "middle"))
again.train(2, 2)
again.shield.remember(again.loader)
torch.save(everything(again.net, again.shield), folder / f"{rank}-resumed.pt")
