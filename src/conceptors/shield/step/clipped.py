"""Seeing that gradients were clipped before they are projected.

Most of a new task's gradient often lies in what old tasks claim. Clipped to a length as a whole and
projected then, hardly anything is left of it, while the pull to the old weights stays as it is.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable

import torch
from torch import Tensor

from conceptors._internal.outside import outside

_LOOKS = 4  # in a row that have to agree
_AT = 16  # steps of a task, of which 1, 2, 4, 8 and 16 are looked at
_SAME = 1e-5  # of a length: clipping leaves it right to rounding
_DIFFERS = 1e-2  # of that, by which a single one differs: else hardly anything moves


class Lengths:
    """Of all of an optimizer's gradients, at some steps; waits for the device once in a task."""

    def __init__(self) -> None:
        self._seen: list[Tensor] = []

    def see(self, gradients: Iterable[Tensor | None], step: int) -> None:
        """Those of the step of that number, from 1; warns after a few."""
        if step == 1:
            self._seen = []
        if step > _AT:
            return
        found = [g for g in gradients if g is not None]
        if not all(type(g) is Tensor and g.layout == torch.strided for g in found) or not found:
            return  # shards know only a part of the length
        sizes = [_sizes(g.detach().float()) for g in found]
        self._seen.append(torch.stack([size.to(sizes[0].device) for size in sizes], 1))
        if step == _AT:
            seen = [both.tolist() for both in self._seen]
            warn_if_clipped([lengths for lengths, _ in seen])
            warn_if_clipped_by_value([largest for _, largest in seen])


def warn_if_clipped(lengths: list[list[float]]) -> None:
    """About gradients whose last lengths `[looks, gradients]` differ, but not that of them all."""
    last = lengths[-_LOOKS:]
    if len(last) < _LOOKS or len({len(look) for look in last}) > 1:
        return
    whole = [math.hypot(*look) for look in last]
    one_by_one = max(_spread(list(single)) for single in zip(*last))
    if whole[0] > 0 and _spread(whole) <= _SAME * whole[0] and one_by_one > _DIFFERS * whole[0]:
        warnings.warn(
            f"all gradients together have a length of {whole[0]:.3g} in one step like in the other "
            f"(of the first {_AT}): {_said('norm', whole[0])}",
            stacklevel=outside(),
        )


def warn_if_clipped_by_value(largest: list[list[float]]) -> None:
    """About gradients `[looks, gradients]` of which several have the same largest number."""
    last = largest[-_LOOKS:]
    if len(last) < _LOOKS or len({len(look) for look in last}) > 1:
        return
    most = max(last[0], default=0.0)
    at_most = [sum(value == most for value in look) for look in last]
    if most and min(at_most) > 1 and all(max(look) == most for look in last):
        warnings.warn(
            f"no number of any gradient is larger than {most:.3g} (in the first {_AT} steps), and "
            f"several are as large: {_said('value', most)}",
            stacklevel=outside(),
        )


def _said(what: str, most: float) -> str:
    return (
        f"they were clipped before the shield projects them, which leaves a new task little to "
        f"learn with. Clip what is left instead: shield.guard(optimizer, between=lambda: "
        f"clip_grad_{what}_(model.parameters(), {most:.3g}))"
    )


def _sizes(gradient: Tensor) -> Tensor:
    """Its length and its largest number `[2]`."""
    largest = gradient.abs().amax() if gradient.numel() else gradient.new_zeros(())
    return torch.stack([gradient.norm(), largest])


def _spread(values: list[float]) -> float:
    return max(values) - min(values)
