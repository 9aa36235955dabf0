"""Digits 0-4, then digits 5-9, in your own training loop: three lines protect the first five.

One network, one head with ten outputs, no task ID at test time, no stored images.
Run with: python examples/your_own_loop.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

from conceptors import Shield

torch.set_num_threads(1)  # fastest for such a small network
X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float() / 16  # [1797, 64]
test = torch.arange(len(X)) % 4 == 0  # every fourth image is held out
tasks = [y < 5, y >= 5]


def learn(protect: bool) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if protect:
        shield = Shield(model)  # 1: attach; the model itself is not changed
        optimizer = shield.guard(optimizer)  # 2: confine all its steps to the free space
    for task in tasks:
        x, target = X[task & ~test], y[task & ~test]
        for _ in range(20):
            for batch in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), target[batch]).backward()
                optimizer.step()
        if protect:
            shield.remember(x)  # 3: protect the directions that this task uses
    return model


print("test accuracy in % after both tasks   digits 0-4   digits 5-9")
for name, protect in (("without a shield", False), ("with a shield", True)):
    is_correct = learn(protect)(X).argmax(1) == y
    accuracies = [100 * float(is_correct[task & test].float().mean()) for task in tasks]
    print(f"{name:36s}" + "".join(f"{accuracy:13.1f}" for accuracy in accuracies))
