"""What the tests of the shield share: a small network, data of low rank, a training loop."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors import Shield


class Unknown(nn.Module):
    """A layer the shield does not know: y = x ⊙ f₁ ⊙ f₂."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(2, size).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor.prod(0)


def mlp(width: int = 24, inputs: int = 10) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 3)).double()


def samples(seed: int = 1, *, count: int = 40, inputs: int = 10, rank: int = 3) -> Tensor:
    """`[count, inputs]` in a few directions, which depend on the seed."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(count, rank, generator=generator, dtype=torch.float64)
    return left @ torch.randn(rank, inputs, generator=generator, dtype=torch.float64)


def train(model: nn.Module, optimizer: Optimizer, x: Tensor, steps: int = 10) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


def quiet(model: nn.Module, aperture: Any = 3.0, **options: Any) -> Shield:
    """A shield that does not warn of layers that are nearly full, as small ones are."""
    return Shield(model, aperture, **{"warn_at_quota": 1.0, **options})


def block(layer: nn.Linear) -> Tensor:
    """[W | b]."""
    return torch.cat([layer.weight.detach(), layer.bias.detach()[:, None]], 1)


def gradient(layer: nn.Linear) -> Tensor:
    """The same of its gradients."""
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)
