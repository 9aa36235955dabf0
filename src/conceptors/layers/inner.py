"""The inputs of a layer whose class overrides `forward`.

A rule expects the arguments of the class that it was registered for. A subclass may change them
before they reach the weight (positions of a mask, permuted channels). For layers that are a single
torch function, the arguments of that function are the inputs.
"""

from __future__ import annotations

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
_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}  # of convolutions
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
    passed: dict[str, Any] = {"weight": None, "bias": None}
    passed |= _DEFAULTS if func in _CONVOLUTIONS else {}
    passed |= dict(zip(names, args)) | {k: v for k, v in kwargs.items() if k in names}
    x, pads_zeros = passed.pop("input"), getattr(layer, "padding_mode", "zeros") == "zeros"
    fits = all(_is_same(value, getattr(layer, name, None)) for name, value in passed.items())
    return Call((x,), {}, output) if fits and pads_zeros else None


def _is_same(passed: Any, own: Any) -> bool:
    """Whether an argument is the layer's own parameter or setting."""
    if isinstance(own, tuple) and isinstance(passed, int):
        passed = (passed,) * len(own)
    return passed is own or (not isinstance(own, torch.Tensor) and bool(passed == own))
