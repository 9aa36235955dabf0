"""A stand-in for a layer, to find out what it does with its parameters without touching it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def own_parameters(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters that a layer holds itself, by name."""
    return dict(layer.named_parameters(recurse=False))


def can_have_twin(layer: nn.Module) -> bool:
    """Whether a layer is one piece, does what its class says, and has plain parameters."""
    held = own_parameters(layer).values()
    return (
        len(held) > 0
        and not layer._modules
        and "forward" not in vars(layer)
        and all(p.is_floating_point() for p in held)
    )


def twin(layer: nn.Module, parameters: Mapping[str, Tensor]) -> Any:
    """A layer of the same class and settings, in evaluation mode, with these as its parameters."""
    device = next(iter(parameters.values())).device
    held: Any = layer._buffers.items()
    buffers = {name: None if b is None else b.to(device, copy=True) for name, b in held}
    found = object.__new__(type(layer))
    vars(found).update(vars(layer), _parameters=dict(parameters), _buffers=buffers, training=False)
    return found


def answer(layer: nn.Module, parameters: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """What a layer would give with these parameters, past its hooks."""
    return type(layer).forward(twin(layer, parameters), *args, **kwargs)


def tried(probe: Callable[[], bool]) -> bool:
    """What a probe finds; False where the layer does not take what it is given."""
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return probe()
        except Exception:  # any layer may be asked, and fail in its own way
            return False


def agree(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two answers are the same, relative to their size; NaN is for others to find."""
    one, other = one.double(), other.double()
    return not bool((one - other).norm() > tolerance * (one.norm() + other.norm()))


def sizes_apart(*taken: int) -> tuple[int, int]:
    """Two small sizes that are none of these, so that no dimension is taken for another."""
    first, second = [n for n in (3, 5, 7, 11, 13, 17) if n not in taken][:2]
    return first, second
