"""Digits 0-4, then digits 5-9, in your own training loop: three lines keep the first five.

One network, one head of ten outputs, no task label, no stored images.
Run with: python examples/your_own_loop.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

from conceptors import Shield

torch.set_num_threads(1)  # the fastest for so small a network
X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float() / 16  # [1797, 64]
test = torch.arange(len(X)) % 4 == 0  # every fourth image is for testing
tasks = [y < 5, y >= 5]


def learn(protect: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if protect:
        shield = Shield(model)  # 1: attach; the model stays as it is
        optimizer = shield.guard(optimizer)  # 2: all its steps leave old tasks alone
    for task in tasks:
        x, target = X[task & ~test], y[task & ~test]
        for _ in range(20):
            for batch in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), target[batch]).backward()
                optimizer.step()
        if protect:
            shield.remember(x)  # 3: what this task uses is protected from now on
    return model


print("test accuracy in % after both tasks   digits 0-4   digits 5-9")
for name, protect in (("as it was", False), ("with a shield", True)):
    right = learn(protect)(X).argmax(1) == y
    accuracies = [100 * float(right[task & test].float().mean()) for task in tasks]
    print(f"{name:36s}" + "".join(f"{accuracy:13.1f}" for accuracy in accuracies))
