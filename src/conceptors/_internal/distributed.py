"""Several processes: tensors that are sharded over them, and errors that reach all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, as in FSDP2 and tensor parallelism."""
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def whole(tensor: Any) -> Tensor:
    """Return a whole tensor; all processes call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[no-any-return]


def shard_like(value: Tensor, like: Any) -> Tensor:
    """Shard a full tensor like another."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements)


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
