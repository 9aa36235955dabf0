"""Digits 0-4, then digits 5-9, with accelerate: saved after the first task, and resumed.

Run with: python examples/accelerate_loop.py (or accelerate launch examples/accelerate_loop.py)
"""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from conceptors import Shield

X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float() / 16  # [1797, 64]
test = torch.arange(len(X)) % 4 == 0
tasks = [y < 5, y >= 5]


def build() -> tuple[Accelerator, Any, Any, Shield]:
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    shield = Shield(model)
    shield.guard(optimizer)  # before or after accelerator.prepare
    accelerator.register_for_checkpointing(shield)  # save_state and load_state include the shield
    return accelerator, model, optimizer, shield


def learn(task: int, accelerator: Accelerator, model: Any, optimizer: Any, shield: Shield) -> None:
    data = TensorDataset(X[tasks[task] & ~test], y[tasks[task] & ~test])
    loader = accelerator.prepare(DataLoader(data, batch_size=32, shuffle=True))
    for _ in range(15):
        for x, labels in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.cross_entropy(model(x), labels))
            optimizer.step()
    shield.remember(loader)


with TemporaryDirectory() as folder:
    accelerator, *rest = build()
    learn(0, accelerator, *rest)
    accelerator.save_state(folder)
    accelerator, *rest = build()  # as a new process would
    accelerator.load_state(folder)
    learn(1, accelerator, *rest)

is_correct = rest[0](X).argmax(1) == y
old, new = (100 * float(is_correct[task & test].float().mean()) for task in tasks)
print(f"test accuracy: digits 0-4 {old:.1f} %, digits 5-9 {new:.1f} %")
