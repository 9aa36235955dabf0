"""Layers that scale channels: every RMSNorm, whatever its class, layer scale, and plain shifts.

They are known by what they do. With one parameter w `[d]` they give c(x) + w ⊙ n(x), row by row: w
times what is normalised, or 1 + w times it. Asked with w = 0 and w = 1, a layer tells c and n.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.layers.base import Block, Call, RowsByBlock, Sample, recognise
from conceptors.layers.norm import by_channel, channels
from conceptors.layers.twin import agree, answer, can_have_twin, own_parameters, sizes_apart, tried

_ROUNDING = 64  # times eps
_CLOSE = _ROUNDING * torch.finfo(torch.float32).eps


def scales_channels(layer: nn.Module) -> bool:
    """Whether a layer gives c(x) + w ⊙ n(x), tried on random numbers, if need be with a gate."""
    if not can_have_twin(layer):
        return False
    (name, weight), *others = own_parameters(layer).items()
    if others or weight.ndim != 1:
        return False
    return any(tried(partial(_probe, layer, name, len(weight), count)) for count in (1, 2))


def _probe(layer: nn.Module, name: str, dim: int, count: int) -> bool:
    draw = torch.Generator().manual_seed(0)
    shapes = (count, *sizes_apart(dim), dim), (dim,)
    x, w = (torch.randn(s, generator=draw, dtype=torch.float32, device="cpu") for s in shapes)
    given = answer(layer, {name: w}, *x.clone())
    still, moving = _parts(layer, name, w, *x.clone())
    alone = answer(layer, {name: w}, *x[:, :1, :1].clone())
    flat = answer(layer, {name: w}, *x.flatten(1, 2))
    return (
        isinstance(given, Tensor)
        and given.shape == x.shape[1:]
        and bool(given.isfinite().all() and moving.any())
        and agree(given, still + w * moving, _CLOSE)
        and agree(flat, given.flatten(0, 1), _CLOSE)
        and agree(alone, given[:1, :1], _CLOSE)
    )


def _parts(
    layer: nn.Module, name: str, like: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """c(x) and n(x) of c(x) + w ⊙ n(x)."""
    zeros = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    still: Tensor = answer(layer, {name: zeros}, *args, **kwargs)
    return still, answer(layer, {name: zeros + 1}, *args, **kwargs) - still


@recognise(scales_channels)
class ScaleRule:
    def blocks(self, layer: nn.Module) -> list[Block]:
        (name,) = own_parameters(layer)
        return [channels(None, weight=name)]

    def rows(self, layer: nn.Module, call: Call, sample: Sample) -> RowsByBlock:
        ((name, weight),) = own_parameters(layer).items()
        given, dim = [*call.args, *call.kwargs.values()], len(weight)
        if len(given) == 1 and dim > 1:  # row by row: only those that are used are computed
            x, times = sample.unrounded(given[0])
            still, moving = _parts(layer, name, weight, x)
        else:  # a gate, say, is a factor too; one number for all channels meets all of theirs
            whole = _parts(layer, name, weight, *call.args, **call.kwargs)
            (still, times), (moving, _) = (sample.unrounded(t.reshape(-1, dim)) for t in whole)
        output, _ = sample.unrounded(call.output if dim > 1 else call.output.reshape(-1, 1))
        eps = max(torch.finfo(t.dtype).eps for t in (output, weight, moving))
        if not agree(output, still + weight * moving, _ROUNDING * eps):
            raise ValueError(
                f"{type(layer).__name__} scaled channels when it was tried out, and does something "
                f"else with this input of shape {list(call.output.shape)}; register a rule for it"
            )
        yield "", by_channel(moving, times)
