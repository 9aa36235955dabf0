"""A model that has remembered one task, exactly, and the drift on it."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import helpers
from conceptors import Shield
from shield.common import mlp, samples
from shield.common import train as train_on

HARD: dict[str, Any] = {"aperture": 1e6, "hard": True}  # claims nearly every direction that was met
data = partial(samples, count=20, inputs=12, rank=4)
network = partial(mlp, width=64, inputs=12)


def shielded(model: nn.Module, **options: Any) -> Shield:
    return Shield(model, **(HARD | options)).remember(data(1))


class Signs(Optimizer):
    """Steps by the signs of gradients, out of any subspace; may be interrupted after that."""

    interrupt = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            p.sub_(0.01 * p.grad.sign())
        if self.interrupt:
            raise KeyboardInterrupt


def train(model: nn.Module, optimizer: Any, steps: int = 5, seed: int = 2) -> None:
    train_on(model, optimizer, data(seed, rank=12), steps)


def outputs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model(data(1))  # type: ignore[no-any-return]


def drift(model: nn.Module, before: Tensor) -> float:
    """Relative, on what was remembered."""
    return helpers.drift(outputs(model), before)
