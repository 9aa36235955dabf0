"""What `Auto`'s share and pull trade where new classes look like old ones: Fashion-MNIST, one head.

    python experiments/share_and_pull.py --out results/untuned/share-and-pull.json

Two tasks of five classes each, 784-800-10, AdamW at 0.001 as a user would take it, validation
images only. About a minute a point on one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conceptors import Auto, Shield
from conceptors._internal.files import write_atomically
from conceptors.experiments.machine import environment
from conceptors.experiments.scenarios.data import load

POINTS = ((0.9, 20.0), (0.99, 20.0), (0.9, 100.0), (0.9, 1000.0), (0.99, 200.0), (0.99, 2000.0))
_HELD_OUT = 5000  # of the training images, the last ones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2, help="of each task")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")  # that little is free, which is the point
    images, labels = load("fashion-mnist")[:2]
    x, y = images.flatten(1).float() / 255, labels.long()
    rows: list[dict[str, Any]] = []
    for share, pull in POINTS:
        found = [measured(x, y, Auto(share, pull), s, options.epochs) for s in range(options.seeds)]
        rows.append({"share": share, "pull": pull})
        for name, values in zip(("old", "new", "all"), zip(*found)):
            rows[-1][name] = round(statistics.mean(values), 2)
        print(json.dumps(rows[-1]), flush=True)
        table = {
            "rows": rows,
            "seeds": options.seeds,
            "epochs": options.epochs,
            "environment": environment(torch.device("cpu")),
        }
        write_atomically(options.out, json.dumps(table, indent=1).encode())


def measured(x: Tensor, y: Tensor, aperture: Auto, seed: int, epochs: int) -> tuple[float, ...]:
    """Validation accuracy in percent after both tasks: on the old classes, the new ones, all."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(784, 800), nn.ReLU(), nn.Linear(800, 10))
    shield = Shield(model, aperture=aperture)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for task in range(2):
        own = (y[:-_HELD_OUT] // 5 == task).nonzero().flatten()
        for _ in range(epochs):
            for batch in own[torch.randperm(len(own))].split(128):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
        shield.remember(x[own[:5000]])
    with torch.no_grad():
        right = 100.0 * (model(x[-_HELD_OUT:]).argmax(1) == y[-_HELD_OUT:])
    is_new = y[-_HELD_OUT:] >= 5
    return tuple(float(part.mean()) for part in (right[~is_new], right[is_new], right))


if __name__ == "__main__":
    main()
