"""Choose how a block's steps are projected onto the free space; see docs/performance.md.

| optimizer                                   | gradients | steps          |
|---------------------------------------------|-----------|----------------|
| SGD without momentum and weight decay       | times F   | unchanged      |
| SGD with momentum, without a pull           | unchanged | times F        |
| LBFGS, which searches with gradients        | times F   | hard: times F  |
| any other                                   | times F^½ | times F^½      |

Steps are unchanged only where one group of the optimizer has a whole block, and gradients only
without a callback that reads them (`between` of `Shield.guard`).

| block                                           | form     |
|-------------------------------------------------|----------|
| one column per group (embeddings)               | tokens   |
| two columns per group (norm layers)             | small    |
| at least half of the directions claimed, and    | dense    |
| SGD whose gradients are projected; not sharded  |          |
| any other                                       | factored |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from conceptors.shield.blocks import is_sharded
from conceptors.shield.step.dense import make_dense
from conceptors.shield.step.elementwise import make_small, make_tokens
from conceptors.shield.step.factored import make_factored
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.strategy import Strategy, Way

_STEADY = 0.5  # the share of the distance that a plain step may pull weights back


def choose(
    active: list[nn.Parameter],
    free: FreeSpace,
    optimizer: Optimizer,
    groups: list[dict[str, Any]],
    looked_at: bool = False,
) -> Way:
    """Choose the way for a block whose parameters are in these groups of an optimizer.

    `looked_at`: whether a callback reads the projected gradients.
    """
    form: Callable[..., Strategy] = make_factored if free.dim > 2 else make_small
    if free.dim == 1 and len(active) == 1:
        form = make_tokens
    # G F of a part, or of parts with separate rates, is no step in the free space
    whole = len(groups) == len(active) and all(group is groups[0] for group in groups)
    linear = whole and type(optimizer) is torch.optim.SGD and not groups[0]["weight_decay"]
    if type(optimizer) is torch.optim.LBFGS:
        about, steps = "gradients projected", free.hard or not whole
        return Way(form, once=True, corrects=steps, about=about)
    stiffest = math.inf
    if isinstance(optimizer, torch.optim.SGD):
        stiffest = _STEADY / max(1e-12, *map(rate, groups))
    full = all(p.dtype in (torch.float32, torch.float64) for p in active)
    if linear and full and not groups[0]["momentum"]:
        about = "gradients projected"
        sharded = any(is_sharded(p.data) for p in active)
        if form is make_factored and not sharded and not free.is_thin:
            form = make_dense
        return Way(form, once=True, corrects=False, stiffest=stiffest, about=about)
    if linear and free.stiffness is None and not looked_at:
        return Way(form, once=True, projects=False, about="steps projected")
    return Way(form, stiffest=stiffest)


def rate(group: dict[str, Any]) -> float:
    """Return the largest learning rate of a schedule, which may start with a small one."""
    return max(float(group.get(name) or 0.0) for name in ("lr", "initial_lr", "max_lr"))
