"""Digits 0-4, then digits 5-9, with Lightning: one callback protects the first five.

Run with: python examples/lightning_fit.py
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Shield
from conceptors.integrations.lightning import ShieldCallback

torch.set_num_threads(1)  # fastest for such a small network
X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float() / 16  # [1797, 64]
test = torch.arange(len(X)) % 4 == 0
tasks = [y < 5, y >= 5]


class Digits(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def learn(protect: bool) -> nn.Module:
    torch.manual_seed(0)
    model = Digits()
    callbacks = [ShieldCallback(Shield(model))] if protect else []
    for task in tasks:
        data = TensorDataset(X[task & ~test], y[task & ~test])
        trainer = Trainer(
            max_epochs=15,
            accelerator="cpu",
            devices=1,
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,  # if enabled, checkpoints include the shield's state
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, DataLoader(data, batch_size=32, shuffle=True))
    return model


print("test accuracy in % after both tasks   digits 0-4   digits 5-9")
for name, protect in (("without a shield", False), ("with a shield", True)):
    is_correct = learn(protect)(X).argmax(1) == y
    accuracies = [100 * float(is_correct[task & test].float().mean()) for task in tasks]
    print(f"{name:36s}" + "".join(f"{accuracy:13.1f}" for accuracy in accuracies))
