"""The inputs of a layer whose class overrides `forward`.

A rule expects the arguments of the class that it was registered for. A subclass may change them
before they reach the weight (positions of a mask, permuted channels). For layers that are a single
torch function, the arguments of that function are the inputs.
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
_ARGUMENTS: dict[object, tuple[str, ...]] = {  # of the functions that layers call
    functional.linear: ("input", "weight", "bias"),
    functional.embedding: ("input", "weight"),
    functional.layer_norm: ("input", "normalized_shape", "weight", "bias"),
    functional.rms_norm: ("input", "normalized_shape", "weight"),
    functional.group_norm: ("input", "num_groups", "weight", "bias"),
    functional.batch_norm: ("input", "running_mean", "running_var", "weight", "bias"),
    **dict.fromkeys(_CONVOLUTIONS, _CONV),
}
_SETTINGS = ("normalized_shape", "num_groups", "running_mean", "running_var")
SINGLE = (  # layers that are one torch function
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Conv1d, nn.Conv2d, nn.Conv3d),
)


def overrides_forward(layer: nn.Module) -> bool:
    """Whether a layer overrides the forward of the class that its rule is for."""
    owner = owner_of(layer)
    if owner is None:
        return False
    return "forward" in layer.__dict__ or type(layer).forward is not owner.forward


def inner_call(layer: Any, func: Any, args: Any, kwargs: Any, output: Any) -> Call | None:
    """Return the layer call that a function call stands for; None if it stands for none."""
    weight = getattr(layer, "weight", None)
    if isinstance(layer, nn.Embedding) and func == torch.Tensor.__getitem__ and args[0] is weight:
        where = args[1][0] if isinstance(args[1], tuple) else args[1]
        tokens = torch.arange(layer.num_embeddings, device=output.device)[where]
        return Call((tokens,), {}, output)
    names = _ARGUMENTS.get(func)
    if names is None or not isinstance(layer, SINGLE) or weight is None:
        return None
    passed = dict(zip(names, args)) | {k: v for k, v in kwargs.items() if k in names}
    fits = (
        passed.get("weight") is weight
        and passed.get("bias") is getattr(layer, "bias", None)
        and all(_is_equal(passed[k], getattr(layer, k)) for k in _SETTINGS if k in passed)
        and (func not in _CONVOLUTIONS or _uses_settings(layer, passed))
    )
    return Call((passed["input"],), {}, output) if fits else None


def _is_equal(one: Any, other: Any) -> bool:
    return one is other or (not isinstance(one, torch.Tensor) and bool(one == other))


def _uses_settings(layer: Any, passed: Mapping[str, Any]) -> bool:
    """Whether a convolution was called with the layer's own settings."""
    size = len(layer.kernel_size)
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    return layer.padding_mode == "zeros" and all(
        _per_axis(passed.get(name, value), size) == _per_axis(getattr(layer, name), size)
        for name, value in defaults.items()
    )


def _per_axis(value: Any, size: int) -> Any:
    return (value,) * size if isinstance(value, int) else value
