"""Layers of several seeds at once: what enters them is what enters the layers they are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conceptors.experiments.stacked import StackedBatchNorm, StackedConv2d, StackedLinear
from layers import references as ref
from layers.case import Case, Draw, Feed, only
from layers.references import Inputs, Rows

_SEEDS = 3


def stacked_cases() -> list[Case]:
    def linear(bias: bool) -> nn.Module:
        made = torch.randn(_SEEDS, 5, 9)
        return StackedLinear(made, torch.randn(_SEEDS, 5) if bias else None)

    return [
        Case(
            "stacked-linear", lambda: linear(True), _each(9), lambda _, i, __: {"": _x(i)}, _as_is
        ),
        Case(
            "stacked-linear-no-bias",
            lambda: linear(False),
            _each(9),
            lambda _, i, __: {"": _x(i)},
            _as_is,
        ),
        Case(
            "stacked-conv2d",
            lambda: StackedConv2d(torch.randn(_SEEDS, 4, 3, 3, 2)),
            _each(3, 4, 3),
            _patches,
            lambda _, output: output.permute(0, 1, 3, 4, 2).flatten(1, 3),
        ),
        Case(
            "stacked-batch-norm",
            _norm,
            _each(5, 3, 2),
            _normalised,
            lambda _, output: output.transpose(1, 2).reshape(_SEEDS * 5, -1, 1),
            old=lambda draw: only(draw.normal(_SEEDS, draw.batch, 5, 3, 2) * 0),
        ),
    ]


def _each(*shape: int) -> Feed:
    def feed(draw: Draw) -> Inputs:
        return only(draw.normal(_SEEDS, draw.batch, *shape))

    return feed


def _x(inputs: Inputs) -> Tensor:
    found: Tensor = inputs.args[0]
    return found


def _as_is(_layer: Any, output: Tensor) -> Tensor:
    return output


def _patches(layer: Any, inputs: Inputs, _output: Any) -> Rows:
    """Those of one convolution after the other."""
    _, out, c, *kernel = layer.weight.shape
    alone = nn.Conv2d(c, out, (kernel[0], kernel[1]), bias=False).double()
    found = [ref.conv_rows(alone, Inputs((x,), {}), alone(x.double()))[""] for x in _x(inputs)]
    return {"": torch.cat(found)}


def _norm() -> nn.Module:
    layer = StackedBatchNorm(_SEEDS, 5)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn(_SEEDS, 5) / 2)
    return layer


def _normalised(layer: Any, inputs: Inputs, _output: Any) -> Rows:
    x = _x(inputs).transpose(1, 2).flatten(2)  # [seeds, c, n]
    var, mean = torch.var_mean(x, 2, correction=0, keepdim=True)
    return {"": ((x - mean) / (var + layer.eps).sqrt()).reshape(_SEEDS * 5, -1, 1)}
