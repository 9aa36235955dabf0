"""Two tasks with Lightning's DDP; run by torchrun.

torchrun two_tasks_lightning.py FOLDER: every process writes what it ends with to FOLDER.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Shield
from conceptors.integrations.lightning import ShieldCallback
from integrations.common import Net, drift, everything, outputs, task


class Module(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(module: Module, shield: Shield, folder: Path, number: int, resumed: Any = None) -> None:
    trainer = Trainer(
        max_epochs=4,
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["WORLD_SIZE"]),
        callbacks=[ShieldCallback(shield), ModelCheckpoint(folder, "{epoch}", save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = DataLoader(TensorDataset(*task(number)), batch_size=4, shuffle=True)
    trainer.fit(module, loader, ckpt_path=resumed)


torch.set_num_threads(1)
folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
module = Module()
shield = Shield(module, aperture=1e4, hard=True)
fit(module, shield, folder / "1", 1)
before = outputs(module.net, 1)
fit(module, shield, folder / "2", 2)
moved = drift(before, outputs(module.net, 1))
torch.save((moved, everything(module.net, shield)), folder / f"{rank}.pt")

again = Module()
second = Shield(again, aperture=1e4, hard=True)
fit(again, second, folder / "2", 2, folder / "2" / "epoch=1.ckpt")
torch.save(everything(again.net, second), folder / f"{rank}-resumed.pt")
