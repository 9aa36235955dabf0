"""Which way a block's steps are kept in the free space: the table of docs/performance.md.

| optimizer                                   | gradients | steps          |
|---------------------------------------------|-----------|----------------|
| SGD without momentum and weight decay       | times F   | left alone     |
| LBFGS, which looks for steps with gradients | times F   | hard: times F  |
| any other                                   | times F^½ | times F^½      |
| SGD with `project="inputs"`                 | made of inputs times F | left alone |

Steps are left alone only where one group of the optimizer has all of a block.

| block                                  | form     |
|----------------------------------------|----------|
| one column a group (embeddings)        | tokens   |
| two columns a group (norm layers)      | small    |
| any other                              | factored |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from conceptors.sites import Site
from conceptors.step import inputs
from conceptors.step.elementwise import make_small, make_tokens
from conceptors.step.factored import make_factored
from conceptors.step.free_space import FreeSpace
from conceptors.step.strategy import Strategy


class Way(NamedTuple):
    """How a block is treated.

    Attributes:
        make: makes the strategy.
        once: gradients are multiplied by F, not by F^½.
        corrects: steps are projected too.
        about: in words.
    """

    make: Callable[..., Strategy] | None
    once: bool
    corrects: bool
    about: str


def choose(
    site: Site,
    active: list[nn.Parameter],
    free: FreeSpace,
    optimizer: Optimizer,
    groups: list[dict[str, Any]],
    by_inputs: bool,
) -> Way:
    """The way for a block whose parameters are in these groups of an optimizer."""
    form: Callable[..., Strategy] = make_factored if free.dim > 2 else make_small
    if free.dim == 1 and len(active) == 1:
        form = make_tokens
    # G F of a part, or of parts with rates of their own, is no step in the free space
    whole = len(groups) == len(active) and all(group is groups[0] for group in groups)
    linear = whole and type(optimizer) is torch.optim.SGD and not groups[0]["weight_decay"]
    if by_inputs and linear and inputs.fits(site, active):
        return Way(None, True, False, "inputs projected")
    if type(optimizer) is torch.optim.LBFGS:
        return Way(form, True, free.hard or not whole, "gradients projected")
    full = all(p.dtype in (torch.float32, torch.float64) for p in active)
    if linear and full and not groups[0]["momentum"]:
        return Way(form, True, False, "gradients projected")
    return Way(form, False, True, "gradients and steps projected")
