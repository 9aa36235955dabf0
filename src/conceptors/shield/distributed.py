"""Several processes: tensors that are sharded over them, and errors that reach all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors.shield.blocks import is_sharded, shard_like


def cut_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Copy a tensor, sharded if `like` is sharded; all processes call this together."""
    if is_sharded(tensor) or not is_sharded(like):
        return tensor.clone()
    return shard_like(tensor.to(like.device), like)


def is_distributed() -> bool:
    """Whether several processes work together."""
    return dist.is_available() and dist.is_initialized()


@contextmanager
def failing_together(device: torch.device) -> Iterator[None]:
    """Raise an error on all processes if one fails, so no process waits for it forever."""
    if not is_distributed():
        yield
        return
    failed = torch.zeros((), device=device)
    try:
        yield
    except Exception:
        dist.all_reduce(failed.fill_(1.0))
        raise
    dist.all_reduce(failed)
    if bool(failed):
        raise ValueError(
            "remember failed on another process; nothing was remembered. See the error there"
        )
