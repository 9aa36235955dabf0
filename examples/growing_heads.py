"""Four tasks and a growing network: every task adds a head to a shared body.

The tasks are the ten digits upright, then turned by 90, 180 and 270 degrees. The task is known at
test time, so only changes of the body can cause forgetting.
Run with: python examples/growing_heads.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from conceptors import Shield

TASKS = ("0°", "90°", "180°", "270°")
torch.set_num_threads(1)  # fastest for such a small network

X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float().reshape(-1, 8, 8) / 16  # [1797, 8, 8]
test = torch.arange(len(X)) % 4 == 0  # every fourth image is held out


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU())
        self.heads = nn.ModuleList()

    def grow(self) -> None:
        self.heads.append(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)))

    def forward(self, x: Tensor, task: int) -> Tensor:
        scores: Tensor = self.heads[task](self.body(x))  # [n, 10]
        return scores


def learn(protect: bool) -> list[list[float]]:
    """Train on all tasks; return the test accuracy on all tasks so far, after each task."""
    torch.manual_seed(0)
    model = Growing()
    shield: Shield | None = None
    table = []
    for task in range(len(TASKS)):
        model.grow()
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        if protect:
            shield = shield or Shield(model)
            optimizer = shield.guard(optimizer)  # also finds the new head
        x, target = X[~test].rot90(task, (1, 2)), y[~test]
        for _ in range(8):
            for batch in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch], task), target[batch]).backward()
                optimizer.step()
        if shield is not None:
            # `feed` calls the model with a batch; this model also needs the task (the newest)
            shield.remember(x, feed=lambda net, batch: net(batch, -1))
        table.append([accuracy(model, old) for old in range(task + 1)])
    if shield is not None:
        print("Quota per layer:", {name: round(q, 2) for name, q in shield.quota().items()}, "\n")
    return table


@torch.no_grad()
def accuracy(model: Growing, task: int) -> float:
    is_correct = model(X[test].rot90(task, (1, 2)), task).argmax(1) == y[test]
    return 100 * float(is_correct.float().mean())


for name, protect in (("without a shield", False), ("with a shield", True)):
    table = learn(protect)
    print(f"Test accuracy in %, {name}")
    print(" " * 14 + "".join(f"{turned:>8s}" for turned in TASKS))
    for task, row in enumerate(table):
        print(f"after task {task + 1}  " + "".join(f"{value:8.1f}" for value in row))
    print(f"mean at the end {sum(table[-1]) / len(TASKS):.1f}\n")
