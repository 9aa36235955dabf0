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
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    flag = torch.tensor(float(failure is not None), device=device)
    with naming_lost_process(failure):
        dist.all_reduce(flag, dist.ReduceOp.MAX)
    if failure is not None:
        raise failure
    if bool(flag):
        raise ValueError(
            "remember failed on another process; nothing was remembered. See the error there"
        )


@contextmanager
def naming_lost_process(before: Exception | None = None) -> Iterator[None]:
    """Explain the error when another process is lost; `before` is an earlier failure."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"remember on rank {dist.get_rank()} lost another process, which was killed or has "
            f"failed; nothing was remembered. Start all processes again from the last checkpoint, "
            f"and call remember again"
        ) from before or error
