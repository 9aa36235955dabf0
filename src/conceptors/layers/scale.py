"""Layers that scale channels: RMSNorm of any class, layer scale, and shifts of channels.

They are recognised by what they compute: c(x) + w ⊙ n(x) for each row x, with one parameter w
`[d]`. The outputs for w = 0 and w = 1 determine c and n.
"""

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
    """Whether a layer computes c(x) + w ⊙ n(x) on random inputs, with or without a gate."""
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
    output = answer(layer, {name: w}, *x.clone())
    constant, factor = _parts(layer, name, w, *x.clone())
    single = answer(layer, {name: w}, *x[:, :1, :1].clone())
    flat = answer(layer, {name: w}, *x.flatten(1, 2))
    return (
        isinstance(output, Tensor)
        and output.shape == x.shape[1:]
        and bool(output.isfinite().all() and factor.any())
        and agree(output, constant + w * factor, _CLOSE)
        and agree(flat, output.flatten(0, 1), _CLOSE)
        and agree(single, output[:1, :1], _CLOSE)
    )


def _parts(
    layer: nn.Module, name: str, like: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Return c(x) and n(x) of c(x) + w ⊙ n(x)."""
    zeros = torch.zeros(like.shape, dtype=like.dtype, device=like.device)
    constant: Tensor = answer(layer, {name: zeros}, *args, **kwargs)
    return constant, answer(layer, {name: zeros + 1}, *args, **kwargs) - constant


@recognise(scales_channels)
class ScaleRule:
    def blocks(self, layer: nn.Module) -> list[Block]:
        (name,) = own_parameters(layer)
        return [channels(None, weight=name)]

    def rows(self, layer: nn.Module, call: Call, sample: Sample) -> RowsByBlock:
        ((name, weight),) = own_parameters(layer).items()
        inputs, output = [*call.args, *call.kwargs.values()], call.output
        if len(inputs) == 1 and len(weight) > 1:  # row by row: only sampled rows are computed
            x, times = sample.unrounded(inputs[0])
            constant, factor = _parts(layer, name, weight, x)
        else:  # a gate is a factor too; a single number multiplies all channels
            both = (*_parts(layer, name, weight, *call.args, **call.kwargs), output)
            constant, factor, output = (t if len(weight) > 1 else t.unsqueeze(-1) for t in both)
            (constant, times), (factor, _) = map(sample.unrounded, (constant, factor))
        output, _ = sample.unrounded(output)
        eps = max(torch.finfo(t.dtype).eps for t in (output, weight, factor))
        if not agree(output, constant + weight * factor, _ROUNDING * eps):
            raise ValueError(
                f"{type(layer).__name__} scaled channels when it was probed, but does something "
                f"else with this input of shape {list(call.output.shape)}; register a rule for it"
            )
        yield "", by_channel(factor, times)
