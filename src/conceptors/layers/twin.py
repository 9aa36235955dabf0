"""A copy of a layer with other parameters, to probe what it computes without changing it."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def own_parameters(layer: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a layer itself, without its children, by name."""
    return dict(layer.named_parameters(recurse=False))


def can_have_twin(layer: nn.Module) -> bool:
    """Whether a layer has real parameters, no children, and the forward of its class."""
    parameters = own_parameters(layer).values()
    return (
        len(parameters) > 0
        and not layer._modules
        and "forward" not in vars(layer)
        and all(p.is_floating_point() for p in parameters)
    )


def twin(layer: nn.Module, parameters: Mapping[str, Tensor | None]) -> Any:
    """Return a layer of the same class and settings, in evaluation mode, with these parameters."""
    copy = object.__new__(type(layer))
    vars(copy).update(vars(layer), _parameters=dict(parameters), training=False)
    return copy


def answer(layer: nn.Module, parameters: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """Compute the output of a layer with these parameters and copied buffers, without its hooks."""
    copy, device = twin(layer, parameters), next(iter(parameters.values())).device
    buffers: Any = layer._buffers.items()
    copy._buffers = {k: None if b is None else b.to(device, copy=True) for k, b in buffers}
    return type(layer).forward(copy, *args, **kwargs)


def tried(probe: Callable[[], bool]) -> bool:
    """Return the result of a probe; False if the layer does not accept its inputs."""
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return probe()
        except Exception:  # a layer of an unknown class may fail in any way
            return False


def agree(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether two outputs agree relative to their size; NaN counts as agreement."""
    one, other = one.double(), other.double()
    return not bool((one - other).norm() > tolerance * (one.norm() + other.norm()))


def sizes_apart(*taken: int) -> tuple[int, int]:
    """Return two small sizes that differ from these, so that no dimensions are confused."""
    first, second = [n for n in (3, 5, 7, 11, 13, 17) if n not in taken][:2]
    return first, second
