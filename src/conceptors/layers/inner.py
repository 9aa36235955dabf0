"""What enters a layer whose class has a forward of its own.

A rule knows the arguments of the class that it was registered for. A subclass may turn them into
something else before it comes to the weight (positions of a mask, channels moved). For layers that
are one function of torch, that function's own call tells what the weight met.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from conceptors.layers.base import Call, owner_of

_CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TAKES: dict[object, tuple[str, ...]] = {  # functions of layers, and their arguments
    functional.linear: ("input", "weight", "bias"),
    functional.embedding: ("input", "weight"),
    functional.layer_norm: ("input", "normalized_shape", "weight", "bias"),
    functional.rms_norm: ("input", "normalized_shape", "weight"),
    functional.group_norm: ("input", "num_groups", "weight", "bias"),
    functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias"),
    **dict.fromkeys(_CONVOLUTIONS, _CONV),
}
_SETTINGS = ("normalized_shape", "num_groups", "running_mean", "running_var")
SINGLE = (  # layers that are one function of torch
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Conv1d, nn.Conv2d, nn.Conv3d),
)


def has_own_forward(layer: nn.Module) -> bool:
    """Whether a layer's forward is another than that of the class its rule is for."""
    owner = owner_of(layer)
    if owner is None:
        return False
    return "forward" in layer.__dict__ or type(layer).forward is not owner.forward


def inner_call(layer: Any, func: Any, args: Any, kwargs: Any, output: Any) -> Call | None:
    """A call of a function as the call of the layer that it is; None if it is another."""
    weight = getattr(layer, "weight", None)
    if isinstance(layer, nn.Embedding) and func == torch.Tensor.__getitem__ and args[0] is weight:
        where = args[1][0] if isinstance(args[1], tuple) else args[1]
        tokens = torch.arange(layer.num_embeddings, device=output.device)[where]
        return Call((tokens,), {}, output)
    names = _TAKES.get(func)
    if names is None or not isinstance(layer, SINGLE) or weight is None:
        return None
    given = dict(zip(names, args)) | {k: v for k, v in kwargs.items() if k in names}
    fits = (
        given.get("weight") is weight
        and given.get("bias") is getattr(layer, "bias", None)
        and all(_same(given[k], getattr(layer, k)) for k in _SETTINGS if k in given)
        and (func not in _CONVOLUTIONS or _is_as_set(layer, given))
    )
    return Call((given["input"],), {}, output) if fits else None


def _same(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, torch.Tensor) and bool(one == other))


def _is_as_set(layer: Any, given: Mapping[str, Any]) -> bool:
    """Whether a convolution is the one that a layer's settings tell."""
    size = len(layer.kernel_size)
    usual = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    return layer.padding_mode == "zeros" and all(
        _each(given.get(name, value), size) == _each(getattr(layer, name), size)
        for name, value in usual.items()
    )


def _each(value: Any, size: int) -> Any:
    return (value,) * size if isinstance(value, int) else value
