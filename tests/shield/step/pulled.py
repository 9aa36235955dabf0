"""A layer that is drawn back, and what of it is needed for the closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conceptors import Shield
from helpers import normal
from shield.step.common import blocks


def rows(count: int = 30) -> Tensor:
    """Samples `[n, 8]` with three directions in use, of about the same size."""
    found: Tensor = torch.linalg.qr(normal(0, count, 3)).Q @ normal(1, 3, 8) * count**0.5
    return found


def pulled(x: Tensor, aperture: Any = "auto", **options: Any) -> tuple[nn.Linear, Shield]:
    """A layer that has remembered x, and has moved since."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 5).double()
    shield = Shield(layer, aperture, rows=None, warn_at_quota=1.0, **options).remember(x)
    with torch.no_grad():
        layer.weight.add_(normal(2, 5, 8), alpha=0.1)
        layer.bias.add_(normal(3, 5), alpha=0.1)
    return layer, shield


def stiffness_of(shield: Shield) -> dict[str, Tensor]:
    found: dict[str, Tensor] = shield.state_dict()["stiffness"]
    return found


def block(layer: nn.Module) -> Tensor:
    return next(iter(blocks(layer).values()))[0]


def second_moment(x: Tensor) -> Tensor:
    """E x xᵀ over all rows, with the constant 1 of the bias."""
    wide = torch.cat([x, torch.ones(*x.shape[:-1], 1).double()], -1).flatten(0, -2)
    return wide.mT @ wide / len(wide)


def given_out(weights: Tensor, moment: Tensor) -> Tensor:
    """E|W x|²."""
    return (weights @ moment @ weights.mT).trace()


def anchor() -> Tensor:
    torch.manual_seed(0)
    return block(nn.Linear(8, 5).double())
