"""A model that has remembered one task, exactly, and the drift on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors import Shield

Step = Callable[[], object]


def data(seed: int, count: int = 20, dim: int = 12, rank: int = 4) -> Tensor:
    """Rows in a subspace, in float64."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, rank, generator=draw, dtype=torch.float64)
    return rows @ torch.randn(rank, dim, generator=draw, dtype=torch.float64)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 3)).double()


def shielded(model: nn.Module, **options: Any) -> Shield:
    """Hard, and nearly everything that was met."""
    settings = {"aperture": 1e6, "hard": True}
    return Shield(model, **(settings | options)).remember(data(1))


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
    x = data(seed, rank=12)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


def drift(model: nn.Module, before: Tensor) -> float:
    """Relative, on what was remembered."""
    with torch.no_grad():
        return float((model(data(1)) - before).norm() / before.norm())


def outputs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(data(1))
    return found
