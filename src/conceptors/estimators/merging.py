"""Sums of several readouts, also of several processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from conceptors.estimators.sums import Sums

UNLIKE = (
    "these readouts have different lifts, so that their sums do not add up; make the others by "
    "readout.fresh() after the first is calibrated, or load its state there"
)


def together(parts: list[Sums]) -> Sums:
    """Their sum."""
    filled = [sums for sums in parts if sums.dim]
    if not filled:
        return Sums(0)
    total = filled[0].copy()
    for sums in filled[1:]:
        total.include(sums)
    return total


def fingerprint(lift: nn.Module) -> str:
    """Equal if and only if two lifts give the same features, whatever device they are on."""
    digest = hashlib.sha256(repr(lift).encode())
    for name, tensor in lift.state_dict().items():
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def agreed(kind: int, kinds: tuple[str, ...], lift: nn.Module, group: Any) -> int:
    """The kind of targets that all processes have learned; refuse what does not add up."""
    found = _gathered((kind, fingerprint(lift)), group)
    if len({mark for own, mark in found if own}) > 1:
        raise ValueError(UNLIKE)
    learned = {own for own, _ in found if own}
    if len(learned) > 1:
        raise ValueError(f"processes have learned {' and '.join(kinds[k] for k in learned)}")
    return max(learned, default=0)


def all_names(names: Iterable[str], group: Any) -> list[str]:
    """Names that any process has, in the same order everywhere."""
    return list(dict.fromkeys(name for own in _gathered(list(names), group) for name in own))


def reduced(sums: Sums, device: torch.device, group: Any) -> Sums:
    """The sum over all processes."""
    sizes = _gathered((sums.dim, sums.outputs, sums.eps), group)
    dim = max(size[0] for size in sizes)
    total = Sums(dim, max(size[1] for size in sizes), device)
    if not dim:
        return total
    if sums.dim:
        total.include(sums)
    count = torch.tensor(total.count, dtype=torch.float64, device=device)
    for tensor in (total.gram, total.cross, total.squares, count):
        dist.all_reduce(tensor, group=group)
    total.count, total.eps = float(count), max(size[2] for size in sizes)
    return total


def _gathered(value: Any, group: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found
