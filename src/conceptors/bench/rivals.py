"""Three other methods that keep steps out of used directions, as their papers write them.

Each one works on the weights of the Linear layers and convolutions of a model, seen as `[out, d]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize


def matrix(weight: Tensor) -> Tensor:
    """A weight, or its gradient, as a view `[out, d]` in the order of its memory."""
    if weight.ndim == 4 and not weight.is_contiguous():
        weight = weight.permute(0, 2, 3, 1)  # channels last
    return weight.view(len(weight), -1)


def layers(model: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """All Linear layers and convolutions of one group."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1)
    ]


def random_basis(dim: int, share: float, like: Tensor) -> Tensor:
    """Orthonormal columns `[d, r]`, r a share of d; what they are does not change the time."""
    rank = max(1, round(share * dim))
    columns = torch.randn(dim, rank, device=like.device, dtype=like.dtype)
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


class GPM:
    """Gradient Projection Memory (Saha, Garg, Roy 2021): g ← g - g M, with M = U Uᵀ dense.

    U spans the inputs of earlier tasks; M is computed once a task.
    """

    def __init__(self, model: nn.Module, bases: list[Tensor]) -> None:
        own = zip(layers(model), bases, strict=True)
        self._held: list[tuple[Tensor, Tensor]] = [(layer.weight, U @ U.mT) for layer, U in own]

    @torch.no_grad()
    def project(self) -> None:
        """Between backward pass and step."""
        for weight, M in self._held:
            if weight.grad is not None:
                g = matrix(weight.grad)
                g.sub_(g @ M)


class OWM:
    """Orthogonal Weight Modification (Zeng et al. 2019): g ← g P, P updated at every step.

    With x the mean input row of the batch, recursive least squares gives
    k = P x / (α + xᵀ P x), P ← P - k (P x)ᵀ, that is P = α (α I + Σ x xᵀ)⁻¹ from P = I.
    """

    def __init__(self, model: nn.Module, alpha: float = 1.0) -> None:
        self.alpha = alpha
        self._layers = layers(model)
        self.P = [_identity(layer) for layer in self._layers]
        self._means: dict[nn.Module, Tensor] = {}
        for layer in self._layers:
            layer.register_forward_pre_hook(self._look)

    @torch.no_grad()
    def project(self) -> None:
        """Between backward pass and step."""
        for layer, P in zip(self._layers, self.P):
            x = self._means.pop(layer)
            Px = P @ x
            P.addr_(Px / (self.alpha + x @ Px), Px, alpha=-1)
            if layer.weight.grad is not None:
                g = matrix(layer.weight.grad)
                g.copy_(g @ P)

    @torch.no_grad()
    def _look(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0]
        if isinstance(layer, nn.Conv2d):
            mean = x.mean(0, keepdim=True, dtype=torch.float32)
            patches = functional.unfold(
                mean, layer.kernel_size, layer.dilation, _symmetric(layer), layer.stride
            ).mean(-1)
            shaped = patches.view(layer.weight[:1].shape)
            if not layer.weight.is_contiguous():
                shaped = shaped.permute(0, 2, 3, 1)
            self._means[layer] = shaped.flatten()
        else:
            self._means[layer] = x.flatten(0, -2).mean(0, dtype=torch.float32)


class Scaled(nn.Module):
    """TRGP's weight: W + Σ_k (W U_k) (S_k - I) U_kᵀ, which is W while all S_k are I."""

    def __init__(self, bases: list[Tensor]) -> None:
        super().__init__()
        self._bases = bases
        self.scales = nn.ParameterList(
            torch.eye(U.shape[1], device=U.device, dtype=U.dtype) for U in bases
        )
        self._ones = [S.detach().clone() for S in self.scales]

    def forward(self, weight: Tensor) -> Tensor:
        W = matrix(weight)
        total = W
        for U, S, one in zip(self._bases, self.scales, self._ones):
            total = total + ((W @ U) @ (S - one)) @ U.mT
        if weight.ndim == 4 and not weight.is_contiguous():
            rows = weight.permute(0, 2, 3, 1).shape
            return total.view(rows).permute(0, 3, 1, 2)
        return total.view(weight.shape)


class TRGP(GPM):
    """Trust Region Gradient Projection (Lin, Yang, Fan, Zhang 2022).

    GPM's projection, and for every trusted earlier task k a learned scaling S_k of its subspace
    in the forward pass: W_eff = W + Σ_k (W U_k) (S_k - I) U_kᵀ. Make the optimizer afterwards:
    the model has new parameters.
    """

    def __init__(self, model: nn.Module, bases: list[Tensor], trusted: list[list[Tensor]]) -> None:
        super().__init__(model, bases)  # the weights of now stay the parameters
        for layer, own in zip(layers(model), trusted, strict=True):
            parametrize.register_parametrization(layer, "weight", Scaled(own))


def _identity(layer: nn.Linear | nn.Conv2d) -> Tensor:
    weight = layer.weight
    return torch.eye(weight[0].numel(), device=weight.device, dtype=torch.float32)


def _symmetric(layer: nn.Conv2d) -> tuple[int, ...]:
    if isinstance(layer.padding, str):
        raise ValueError(f"padding {layer.padding!r} is not supported here; give numbers")
    return tuple(layer.padding)
