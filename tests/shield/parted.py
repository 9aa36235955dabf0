"""What two processes see of the data, and what of a shield they have to agree on.

With rank None the same work is done by one process on all data, which is what the two have to
agree with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from conceptors import Shield

Rank = int | None

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
}
APERTURES: dict[str, Any] = {"number": 20.0, "auto": "auto"}


def part(x: Tensor, rank: Rank) -> Tensor:
    """What a rank sees of the data: every second sample, or everything if it is alone."""
    return x if rank is None else x[rank::2]


def matrices(shield: Shield) -> dict[str, Tensor]:
    return {name: conceptor.matrix() for name, conceptor in shield.conceptors().items()}


def weights(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        value: Any = parameter.detach()
        found[name] = (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
    return found


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
