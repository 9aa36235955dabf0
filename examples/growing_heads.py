"""Four tasks, and a network that grows: every task brings its own head, on a shared body.

The tasks are the ten digits upright, then turned by 90, 180 and 270 degrees. A head is added to
the model as any layer would be, and the shield finds it by itself at the next `guard`; the
optimizer is made anew for every task. At test time the task is known, so that only what happens
to the body can hurt old tasks.
Run with: python examples/growing_heads.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from conceptors import Shield

TASKS = ("0°", "90°", "180°", "270°")
torch.set_num_threads(1)  # the fastest for so small a network

X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
X = X.float().reshape(-1, 8, 8) / 16  # [1797, 8, 8]
test = torch.arange(len(X)) % 4 == 0  # every fourth image is for testing


class Growing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU())
        self.heads = nn.ModuleList()

    def grow(self) -> None:
        self.heads.append(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)))

    def forward(self, x: Tensor, task: int) -> Tensor:
        found: Tensor = self.heads[task](self.body(x))  # [n, 10]
        return found


def learn(protect: bool) -> list[list[float]]:
    """Test accuracy on all tasks so far, after each task."""
    torch.manual_seed(0)
    model = Growing()
    shield: Shield | None = None
    table = []
    for task in range(len(TASKS)):
        model.grow()
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        if protect:
            shield = shield or Shield(model)
            optimizer = shield.guard(optimizer)  # looks at the model again: a new head
        x, target = X[~test].rot90(task, (1, 2)), y[~test]
        for _ in range(8):
            for batch in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch], task), target[batch]).backward()
                optimizer.step()
        if shield is not None:
            # `feed` says how a batch is fed: this model also wants to know the task, the newest
            shield.remember(x, feed=lambda net, batch: net(batch, -1))
        table.append([accuracy(model, old) for old in range(task + 1)])
    if shield is not None:
        listed = ", ".join(f"{name} {quota:.2f}" for name, quota in shield.quota().items())
        print(f"How full each layer is at the end: {listed}\n")
    return table


@torch.no_grad()
def accuracy(model: Growing, task: int) -> float:
    right = model(X[test].rot90(task, (1, 2)), task).argmax(1) == y[test]
    return 100 * float(right.float().mean())


def main() -> None:
    for name, protect in (("without a shield", False), ("with a shield", True)):
        table = learn(protect)
        print(f"Test accuracy in %, {name}")
        print(" " * 14 + "".join(f"{turned:>8s}" for turned in TASKS))
        for task, row in enumerate(table):
            print(f"after task {task + 1}  " + "".join(f"{value:8.1f}" for value in row))
        print(f"mean at the end {sum(table[-1]) / len(TASKS):.1f}\n")


if __name__ == "__main__":
    main()
