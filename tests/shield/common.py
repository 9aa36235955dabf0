"""Small networks, data of low rank and the law of a step, for the tests of the shield."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors import Shield
from conceptors.shield.blocks import WeightBlock, scan
from conceptors.shield.collect import Pass, collect


def mlp(width: int = 24, inputs: int = 10) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, 3)).double()


def samples(seed: int = 1, count: int = 40, inputs: int = 10, rank: int = 3) -> Tensor:
    """`[count, inputs]` in a few directions, which depend on the seed."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(count, rank, generator=generator, dtype=torch.float64)
    return left @ torch.randn(rank, inputs, generator=generator, dtype=torch.float64)


def with_unit(x: Tensor) -> Tensor:
    """Rows `[n, d + 1]`: the samples, and the constant 1 of the bias."""
    return torch.cat([x, torch.ones(*x.shape[:-1], 1).to(x)], -1).flatten(0, -2)


def train(model: nn.Module, optimizer: Optimizer, x: Tensor, steps: int = 10) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


def quiet(model: nn.Module, aperture: Any = 3.0, **options: Any) -> Shield:
    """A shield with a numeric aperture."""
    return Shield(model, aperture, **options)


class Unknown(nn.Module):
    """A layer the shield does not know: y = x ⊙ f₁ ⊙ f₂."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(2, size).double())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor.prod(0)


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
        return self.head(self.end(x.mean((-1, -2))))  # type: ignore[no-any-return]


def mixed(channels_last: bool = False) -> Any:
    """In evaluation mode, as a shield fixes the statistics of BatchNorm."""
    torch.manual_seed(0)
    model: Any = Mixed().double().eval()
    return model.to(memory_format=torch.channels_last) if channels_last else model


def backward(model: nn.Module, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    model(torch.randint(11, (16,), generator=generator)).square().sum().backward()


def root(claimed: Tensor) -> Tensor:
    """F^½ `[..., d, d]` of F = I - A, by its definition."""
    values, vectors = torch.linalg.eigh(torch.eye(claimed.shape[-1]).to(claimed) - claimed)
    values = torch.where(values < 1e-12, 0.0, values)  # rounding of what is claimed wholly
    return (vectors * values.sqrt().unsqueeze(-2)) @ vectors.mT  # type: ignore[no-any-return]


def weight_blocks(model: nn.Module) -> dict[str, WeightBlock]:
    return scan(model, (), ()).blocks


def blocks(model: nn.Module) -> dict[str, Tensor]:
    """[W | b] `[g, out, d]` of every layer."""
    return {
        name: block.matrix(block.parameters).clone() for name, block in weight_blocks(model).items()
    }


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The same of the gradients."""
    grads: dict[int, Any] = {id(p): p.grad for p in model.parameters()}
    return {
        n: block.matrix(block.parameters, grads).clone()
        for n, block in weight_blocks(model).items()
    }


def set_gradients(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put matrices [W | b] in place of the gradients."""
    grads: dict[int, Any] = {id(p): p.grad for p in model.parameters()}
    for name, block in weight_blocks(model).items():
        put(block, grads, values[name])


def put(block: WeightBlock, tensors: dict[int, Any], matrix: Tensor) -> None:
    """Write [W | b] into one tensor per parameter."""
    views = block.views(tensors, block.parameters)
    parts = matrix.split([view.shape[2:].numel() for view in views], -1)
    for view, part in zip(views, parts):
        view.copy_(part.reshape(view.shape))


def moments(
    model: nn.Module, batches: Any, *, feed: Any = None, all_rows: bool = True, seed: int = 0
) -> dict[str, Any]:
    """Second moments of the inputs of all layers."""
    run = Pass(model, scan(model, (), ()), all_rows=all_rows, seed=seed, sketch=lambda dim: None)
    return dict(collect(run, batches, feed=feed, limit=None))
