"""What a user meets in the first hour: short tasks, clipped gradients, recurrent networks.

    python experiments/first_hour.py --out results/untuned/first-hour.json

8×8 digits of scikit-learn in two tasks of five classes and one head, AdamW at 0.001, batches of 64,
`Shield(model)` as it comes, one seed: percent right at the end of each task's digits among the
last 497.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from conceptors import Shield

_TRAINED = 1300  # digits; the others are tested
_CLASSES = 5  # a task


class Rows(nn.Module):
    """Reads an image row by row."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.body, self.head = kind(8, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.body(x.view(-1, 8, 8))
        found: Tensor = self.head(states[:, -1])
        return found


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def learned(
    make: Callable[[], nn.Module], epochs: int, shielded: bool = True, clip: str = ""
) -> list[float]:
    """Percent right of both tasks; `clip` gradients to 1 in the loop, or after the projection."""
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)

    def clipped() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    shield = Shield(model) if shielded else None
    if shield is not None:
        shield.guard(optimizer, between=clipped if clip == "between" else None)
    tasks = [(y >= first) & (y < first + _CLASSES) for first in (0, _CLASSES)]
    for task in tasks:
        own_x, own_y = x[:_TRAINED][task[:_TRAINED]], y[:_TRAINED][task[:_TRAINED]]
        for _ in range(epochs):
            for batch in torch.randperm(len(own_x)).split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(own_x[batch]), own_y[batch]).backward()
                if clip == "loop":
                    clipped()
                optimizer.step()
        if shield is not None:
            shield.remember(own_x)
    right = model(x).argmax(1) == y
    return [round(100 * float(right[_TRAINED:][t[_TRAINED:]].float().mean()), 1) for t in tasks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    found = {}
    for epochs in (5, 10):
        found[f"plain, {epochs} epochs"] = learned(mlp, epochs, shielded=False)
        found[f"shield, {epochs} epochs"] = learned(mlp, epochs)
    for clip in ("loop", "between"):
        found[f"shield, 10 epochs, clipped: {clip}"] = learned(mlp, 10, clip=clip)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for shielded in (False, True):
            name = f"{'shield' if shielded else 'plain'}, {kind.__name__}, 30 epochs"
            found[name] = learned(lambda kind=kind: Rows(kind), 30, shielded)  # type: ignore[misc]
    for name, both in found.items():
        print(f"{name:<36}{both[0]:6.1f}{both[1]:6.1f}")
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
