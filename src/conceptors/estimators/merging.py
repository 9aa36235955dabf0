"""Sums of several readouts, also of several processes."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed as dist
from torch import nn

from conceptors.estimators.samples import KINDS
from conceptors.estimators.sums import TORN, Sums

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


def configured(lift: nn.Module) -> str:
    """Equal if two lifts calibrated alike give the same features."""
    sizes = getattr(lift, "in_features", None), getattr(lift, "out_features", None)
    return f"{sizes} {lift!r}"


def fingerprint(lift: nn.Module) -> str:
    """Equal if and only if two lifts give the same features, whatever device they are on."""
    digest = hashlib.sha256(configured(lift).encode())
    for name, tensor in lift.state_dict().items():
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)  # a number alone has no bytes
        digest.update(plain.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Side(NamedTuple):
    """What must fit before two readouts are added up."""

    kind: int  # of targets, 0 if nothing was learned
    weighting: str
    configured: str
    fingerprint: str
    torn: bool


def check_alike(sides: Sequence[Side]) -> int:
    """The first of them that has learned, or 0; refuse what does not add up.

    One that has learned nothing may have a lift that is not calibrated, or otherwise.
    """
    learned = [side for side in sides if side.kind]
    if any(side.torn for side in sides):
        raise RuntimeError(TORN)
    if len({side.configured for side in sides}) > 1 or len({s.fingerprint for s in learned}) > 1:
        raise ValueError(UNLIKE)
    if len(kinds := sorted({side.kind for side in learned})) > 1:
        raise ValueError(f"these have learned {' and '.join(KINDS[k] for k in kinds)}")
    if len(ways := sorted({side.weighting for side in sides})) > 1:
        raise ValueError(f"weighting differs: {' and '.join(ways)}")
    return next((i for i, side in enumerate(sides) if side.kind), 0)


def agreed(side: Side, lift: nn.Module, group: Any) -> tuple[int, nn.Module]:
    """The kind of targets that processes have learned, and their lift; every process gets both."""
    sides = [Side(*found) for found in _gathered(tuple(side), group)]
    first = check_alike(sides)
    made = copy.deepcopy(lift)
    if len({side.fingerprint for side in sides}) > 1:  # some have not seen any data
        state = {name: value.cpu() for name, value in lift.state_dict().items()}
        found: list[Any] = [state if dist.get_rank(group) == first else None]
        source = first if group is None else dist.get_global_rank(group, first)
        dist.broadcast_object_list(found, source, group)
        made.load_state_dict(found[0])
    return sides[first].kind, made


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
