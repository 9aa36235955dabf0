"""What `Auto`'s room does on many tasks: forty permutations of the pixels of 8×8 digits.

    python experiments/room.py --out results/untuned/room.json

64-200-200-10, one head, three epochs of 1,400 images a task, half a minute a point on one core.
Accuracy is on the other images, right after each task and after all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from conceptors import Auto, Shield
from conceptors._internal.files import write_atomically
from conceptors.experiments.machine import environment

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW at 0.001": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "SGD at 0.1": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
}
ROOMS = (0.0, 0.2, 0.4)
_TRAINED = 1400  # of 1,797 images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=40)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")  # that little is free, which is the point
    rows: list[dict[str, Any]] = []
    for optimizer in OPTIMIZERS:
        for room in ROOMS:
            found = [measured(optimizer, room, options.tasks, s) for s in range(options.seeds)]
            rows.append({"optimizer": optimizer, "room": room})
            for name, values in zip(("after each task", "after all"), zip(*found)):
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                rows[-1][name] = [round(statistics.mean(values), 2), round(spread, 2)]
            print(json.dumps(rows[-1]), flush=True)
            table = {
                "rows": rows,
                "seeds": options.seeds,
                "tasks": options.tasks,
                "environment": environment(torch.device("cpu")),
            }
            write_atomically(options.out, json.dumps(table, indent=1).encode())


def measured(kind: str, room: float, tasks: int, seed: int) -> tuple[float, float]:
    """Mean accuracy in percent right after each task, and after the last."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(seed)
    mixed = torch.randperm(len(x))
    trained, tested = mixed[:_TRAINED], mixed[_TRAINED:]
    orders = [torch.randperm(64) for _ in range(tasks)]
    model = nn.Sequential(
        nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )
    shield = Shield(model, Auto(room=room))
    optimizer = shield.guard(OPTIMIZERS[kind](model.parameters()))

    def right(order: Tensor) -> float:
        with torch.no_grad():
            found = model(x[tested][:, order]).argmax(1) == y[tested]
        return 100 * float(found.float().mean())

    at_once = []
    for order in orders:
        for _ in range(3):
            for batch in trained[torch.randperm(_TRAINED)].split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch][:, order]), y[batch]).backward()
                optimizer.step()
        shield.remember(x[trained][:, order])
        at_once.append(right(order))
    return statistics.mean(at_once), statistics.mean(right(order) for order in orders)


if __name__ == "__main__":
    main()
