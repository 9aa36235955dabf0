"""The least work that shielding a step takes, and the least time for it on this machine.

Taking the claimed part off the change of a weight `[out, d]` with a conceptor of rank r takes two
thin products, 4 out d r operations, or 2 out d² with the d x d matrix; the weights are read and
written once, the factors read once. Where steps are linear in gradients, the n input rows of a
batch can be projected instead (4 n d r, or 2 n d²), which is less for small batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from conceptors import Shield
from conceptors.bench.ceilings import Ceilings
from conceptors.shield.blocks import scan

_BYTES = 4  # a number; projections are made in float32


@dataclass(frozen=True)
class Block:
    """A weight with its bias, seen as `groups` matrices `[out, d]`."""

    name: str
    groups: int
    out: int
    d: int
    shared: bool = False  # another block reads and writes the same numbers

    @property
    def numbers(self) -> int:
        return self.groups * self.out * self.d


@dataclass(frozen=True)
class Work:
    """Operations and bytes."""

    flops: float
    bytes: float

    def seconds(self, rate: float, bandwidth: float) -> float:
        """Least time, if arithmetic and memory traffic overlap completely."""
        return max(self.flops / rate, self.bytes / bandwidth)


def blocks(model: nn.Module) -> list[Block]:
    """All blocks of a model.

    >>> blocks(nn.Linear(3, 5))
    [Block(name='Linear', groups=1, out=5, d=4, shared=False)]
    """
    found, seen = [], set()
    for name, site in scan(model, exclude=(), freeze=()).sites.items():
        groups, out, d = site.matrix(site.parameters).shape
        found.append(Block(name, groups, out, d, shared=id(site.weight) in seen))
        seen.add(id(site.weight))
    return found


def ranks(shield: Shield) -> dict[str, int]:
    """How many directions of each layer the shield takes off every step."""
    found = {}
    for name, conceptor in shield.conceptors().items():
        eps = torch.finfo(torch.float32).eps
        used = int((conceptor.singular_values > eps).sum(-1).max())
        found[name] = min(used, limit_of(shield, conceptor.dim))
    return found


def limit_of(shield: Shield, dim: int) -> int:
    """The most directions of a layer of so many inputs that are protected."""
    if shield.rank is None:
        return dim
    share = shield.rank
    return min(dim, max(1, round(share * dim)) if isinstance(share, float) else share)


def of_weights(block: Block, rank: int) -> Work:
    """Projecting the change of the weights.

    >>> of_weights(Block("fc", 1, out=5, d=10), rank=2)
    Work(flops=400.0, bytes=480.0)
    """
    rows = block.groups * block.out
    thin, dense = 4.0 * rows * block.d * rank, 2.0 * rows * block.d**2
    factors = block.groups * block.d * (rank if thin < dense else block.d)
    touched = 0 if block.shared else 2 * block.numbers
    return Work(min(thin, dense), float(_BYTES * (touched + factors)))


def of_rows(block: Block, rank: int, rows: int) -> Work:
    """Projecting the input rows of a batch instead; one group."""
    thin, dense = 4.0 * rows * block.d * rank, 2.0 * rows * block.d**2
    factors = block.d * (rank if thin < dense else block.d)
    return Work(min(thin, dense), float(_BYTES * (2 * rows * block.d + factors)))


def least_seconds(
    model: nn.Module,
    claimed: Mapping[str, int],
    ceilings: Ceilings,
    *,
    rows: int | None = None,
    rate: float | None = None,
) -> float:
    """The floor of the time that shielding adds to a step: the sum over all blocks.

    Args:
        claimed: directions of each block, as `ranks` gives them.
        rows: input rows of a batch, where projecting them instead is possible.
        rate: of products; by default that of the fastest ones with the accuracy of float32.
    """
    total = 0.0
    speed = rate or ceilings.exact
    for block in blocks(model):
        rank = claimed.get(block.name, 0)
        if not rank:
            continue
        works = [of_weights(block, rank)]
        if rows is not None and block.groups == 1:
            works.append(of_rows(block, rank, rows))
        total += min(work.seconds(speed, ceilings.bandwidth) for work in works)
    return total
