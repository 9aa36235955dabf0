"""Projecting gradients, and other tensors of the shapes of a site's parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conceptors.precision import full
from conceptors.projection import Projector
from conceptors.sites import Site, is_sharded


def _local(tensor: Any) -> Tensor:
    found: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return found


def _local_gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    return _local(torch.zeros_like(parameter.data) if gradient is None else gradient)


def _like_gradient(parameter: nn.Parameter, local: Tensor) -> Tensor:
    """A local gradient in the form the parameter wants."""
    if not is_sharded(parameter.data):
        return local
    from torch.distributed.tensor import DTensor

    data: Any = parameter.data
    return DTensor.from_local(
        local, data.device_mesh, data.placements, shape=data.shape, stride=data.stride()
    )


def project_gradient(site: Site, active: list[nn.Parameter], projector: Projector) -> None:
    """Put the projected gradients of a site's parameters in place of the raw ones."""
    gradients = [_local_gradient(p) for p in active]
    for parameter, part in zip(active, projected(site, active, projector, gradients)):
        parameter.grad = _like_gradient(parameter, part)


def projected(
    site: Site, active: list[nn.Parameter], projector: Projector, tensors: list[Tensor]
) -> list[Tensor]:
    """Tensors of the shapes of the active parameters, seen as one matrix M, as M (I - A)."""
    matrix = site.matrix(active, {id(p): t for p, t in zip(active, tensors)})
    free = matrix - projector.claimed(full(matrix)).to(matrix.dtype)
    found, taken = [], 0
    for parameter, tensor in zip(active, tensors):
        whole = torch.empty_like(tensor)
        (view,) = site.views({id(parameter): whole}, [parameter])
        size = view.shape[2:].numel()
        view.copy_(free[..., taken : taken + size].reshape(view.shape))
        taken += size
        found.append(whole)
    return found
