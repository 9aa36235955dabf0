"""A network whose inputs are projected."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from conceptors import Shield
from shield.common import samples

data = partial(samples, count=20, rank=4)


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(10, 64), nn.ReLU(inplace=True), nn.Linear(64, 40, bias=False), nn.Tanh()
    ).double()


class Run:
    """A shielded network in training, by its inputs or by its gradients."""

    def __init__(self, project: str = "inputs", hard: bool = True, **options: float) -> None:
        self.model = network()
        chosen: Any = {"hard": hard, "project": project, "warn_at_quota": 1.0}
        self.shield = Shield(self.model, 3.0, **chosen)
        made = torch.optim.SGD(self.model.parameters(), lr=0.05, **options)  # type: ignore[arg-type]
        self.optimizer = self.shield.guard(made)
        self.shield.remember(data(1))

    def loss(self, x: Tensor) -> Tensor:
        found: Tensor = (self.model(x) - 1).square().mean()
        return found

    def done(self) -> set[str]:
        return {row.done for row in self.shield.explain()}
