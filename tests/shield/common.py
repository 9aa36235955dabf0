"""What the tests of the shield share: small networks, data of low rank, the law by definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors import Shield
from conceptors.shield.blocks import WeightBlock, scan


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
    """A shield with a numeric aperture."""
    return Shield(model, aperture, **options)


@pytest.fixture(autouse=True)
def never_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no layer count as full."""
    monkeypatch.setattr("conceptors.shield.room._FULL", 1.0)


def block(layer: nn.Linear) -> Tensor:
    """[W | b]."""
    return torch.cat([layer.weight.detach(), layer.bias.detach()[:, None]], 1)


def gradient(layer: nn.Linear) -> Tensor:
    """The same of its gradients."""
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1)


class Mixed(nn.Module):
    """Every kind of block in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.spread = nn.Linear(6, 3 * 8 * 8)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, groups=4)
        self.back = nn.ConvTranspose2d(8, 4, 2)
        self.end = nn.LayerNorm(4)
        self.head = nn.Linear(4, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.spread(self.words(tokens))).unflatten(-1, (3, 8, 8))
        x = self.back(torch.relu(self.grouped(torch.relu(self.norm(self.conv(x))))))
        found: Tensor = self.head(self.end(x.mean((-1, -2))))
        return found


def mixed(channels_last: bool = False) -> Mixed:
    """In evaluation mode, as a shield holds BatchNorm's statistics."""
    torch.manual_seed(0)
    made = Mixed().double().eval()
    return made.to(memory_format=torch.channels_last) if channels_last else made  # type: ignore[call-overload]


def backward(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    model(torch.randint(11, (16,), generator=generator)).square().sum().backward()


def root(claimed: Tensor) -> Tensor:
    """F^½ `[..., d, d]` of F = I - A, by its definition."""
    values, vectors = torch.linalg.eigh(torch.eye(claimed.shape[-1]).to(claimed) - claimed)
    values = torch.where(values < 1e-12, 0.0, values)  # rounding of what is claimed wholly
    found: Tensor = (vectors * values.sqrt().unsqueeze(-2)) @ vectors.mT
    return found


def sites(model: nn.Module) -> dict[str, WeightBlock]:
    return scan(model, (), ()).sites


def blocks(model: nn.Module) -> dict[str, Tensor]:
    """[W | b] `[g, out, d]` of every layer."""
    return {name: site.matrix(site.parameters).clone() for name, site in sites(model).items()}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The same of the gradients."""
    found = {}
    for name, site in sites(model).items():
        held: dict[int, Any] = {id(p): p.grad for p in site.parameters}
        found[name] = site.matrix(site.parameters, held).clone()
    return found


def set_gradients(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put matrices [W | b] in place of the gradients."""
    for name, site in sites(model).items():
        held: dict[int, Any] = {id(p): p.grad for p in site.parameters}
        views = site.views(held, site.parameters)
        parts = values[name].split([view.shape[2:].numel() for view in views], -1)
        for view, part in zip(views, parts):
            view.copy_(part.reshape(view.shape))
