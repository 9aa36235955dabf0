"""What the tests of steps share: a model with every kind of block, and the law by definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors import Conceptor
from conceptors.shield.blocks import WeightBlock, scan


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


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """As `.grad` has it."""
    assert parameter.grad is not None
    return parameter.grad


def backward(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    model(torch.randint(11, (16,), generator=generator)).square().sum().backward()


def train(model: nn.Module, optimizer: Optimizer, count: int) -> None:
    for step in range(count):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


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
    _set(model, values, lambda p: p.grad)


def set_blocks(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put matrices [W | b] in place of the weights."""
    _set(model, values, lambda p: p.data)


def _set(model: nn.Module, values: Mapping[str, Tensor], get: Callable[[Any], Any]) -> None:
    for name, site in sites(model).items():
        held = {id(p): get(p) for p in site.parameters}
        views = site.views(held, site.parameters)
        parts = values[name].split([view.shape[2:].numel() for view in views], -1)
        for view, part in zip(views, parts):
            view.copy_(part.reshape(view.shape))


def odds(conceptor: Conceptor, least: float = 0.0) -> Tensor:
    """Q = A (I - A)⁻¹ `[..., d, d]` of the directions with singular values over `least`."""
    vectors, values, _ = conceptor.spectrum
    scale = torch.where(values > least, values / (1 - values), 0.0)
    found: Tensor = (vectors * scale.unsqueeze(-2)) @ vectors.mT
    return found
