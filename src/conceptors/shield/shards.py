"""Sharded parameters (DTensors): this process's part of them, and what is cut as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conceptors.shield.blocks import is_sharded, shard_like


def local(tensor: Tensor) -> Tensor:
    """The part that this process holds; all of a tensor that is not sharded."""
    found: Tensor = getattr(tensor, "_local_tensor", tensor)  # to_local() is slow and makes views
    return found


def versions(parameter: nn.Parameter) -> tuple[int, int]:
    """How often a parameter was changed, and how often its local part alone.

    The first is the same on all processes, as long as they do the same.
    """
    return parameter._version, local(parameter)._version


def gathered(tensor: Any) -> Tensor:
    """A copy of all of a tensor, in main memory where it was sharded; all processes call it."""
    whole: Tensor = tensor.full_tensor().cpu() if is_sharded(tensor) else tensor.clone()
    return whole


def cut_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of a tensor, sharded if `like` is; all processes call it."""
    if is_sharded(tensor) or not is_sharded(like):
        return tensor.clone()
    return shard_like(tensor.to(like.device), like)


def gather_rows(rows: Tensor, like: Any) -> Tensor:
    """All rows `[1, out, k]` from each process's own, of a parameter cut by rows."""
    from torch.distributed.tensor import DTensor

    shape = torch.Size((like.shape[0], rows.shape[-1]))
    whole: Any = DTensor.from_local(
        rows[0], like.device_mesh, like.placements, shape=shape, stride=(shape[1], 1)
    )
    return gathered(whole)[None]


def cut_rows(whole: Tensor, like: Any) -> Tensor:
    """This process's rows of `[1, out, k]`; what has another shape is left as it is."""
    if whole.ndim != 3 or whole.shape[:2] != (1, like.shape[0]):
        return whole
    return local(shard_like(whole[0].to(like.device), like))[None]
