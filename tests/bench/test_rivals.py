"""The rivals of the performance suite do what their papers say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.bench.rivals import GPM, OWM, TRGP, layers, matrix, random_basis


@pytest.fixture(params=["contiguous", "channels last"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    found: Any = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(4, 5, 1, bias=False),
        nn.Flatten(),
        nn.Linear(5 * 16, 6),
    ).double()
    if request.param == "channels last":
        found = found.to(memory_format=torch.channels_last)
    return found  # type: ignore[no-any-return]


def push(model: nn.Module) -> Tensor:
    """A forward and a backward pass; the input."""
    x = torch.randn(7, 3, 8, 8).to(next(model.parameters()))
    model.zero_grad()
    model(x).square().sum().backward()
    return x


def bases(model: nn.Module) -> list[Tensor]:
    return [
        random_basis(matrix(layer.weight).shape[1], 0.3, layer.weight) for layer in layers(model)
    ]


def gradients(model: nn.Module) -> list[Tensor]:
    found = [layer.weight.grad for layer in layers(model)]
    return [matrix(gradient).clone() for gradient in found if gradient is not None]


def test_gpm_leaves_gradients_orthogonal_to_the_basis(model: nn.Module) -> None:
    U = bases(model)
    gpm = GPM(model, U)
    push(model)
    raw = gradients(model)
    gpm.project()
    for basis, before, after in zip(U, raw, gradients(model), strict=True):
        assert float((before @ basis).abs().max()) > 1e-3
        assert float((after @ basis).abs().max()) < 1e-9 * float(before.norm())
        torch.testing.assert_close(after, before - before @ basis @ basis.mT)


def test_owm_equals_its_closed_form(model: nn.Module) -> None:
    owm = OWM(model.float(), alpha=0.5)
    totals = [torch.zeros_like(P) for P in owm.P]
    for _ in range(4):
        x = push(model)
        for mean, total in zip(mean_rows(model, x), totals, strict=True):
            total.add_(torch.outer(mean, mean))
        raw = gradients(model)
        owm.project()
        for P, total, before, after in zip(owm.P, totals, raw, gradients(model), strict=True):
            wanted = 0.5 * torch.linalg.inv(0.5 * torch.eye(len(P)) + total)
            torch.testing.assert_close(P, wanted, rtol=0, atol=1e-5)
            torch.testing.assert_close(after, before @ P)


@torch.no_grad()
def mean_rows(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The mean input row of each layer, in the order of the weight's memory."""
    first, second, _ = layers(model)
    patches = functional.unfold(x, 3, padding=1, stride=2).mean((0, 2)).view(3, 3, 3)
    order = patches if first.weight.is_contiguous() else patches.permute(1, 2, 0)
    weights = [layer.weight for layer in (first, second)]
    inner = functional.relu(functional.conv2d(x, weights[0], stride=2, padding=1))
    last = functional.conv2d(inner, weights[1]).flatten(1).mean(0)
    return [order.flatten(), inner.mean((0, 2, 3)), last]


def test_trgp_is_the_model_itself_while_its_scales_are_one(model: nn.Module) -> None:
    weights = [layer.weight.detach().clone() for layer in layers(model)]
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    before = model(x)
    count = len(list(model.parameters()))
    U, trusted = bases(model), [[a, b] for a, b in zip(bases(model), bases(model))]
    trgp = TRGP(model, U, trusted)
    assert len(list(model.parameters())) == count + 2 * 3
    for layer, weight in zip(layers(model), weights):
        torch.testing.assert_close(layer.weight, weight, rtol=0, atol=0)
        if weight.ndim == 4 and not weight.is_contiguous():
            assert layer.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x), before)
    push(model)
    trgp.project()
    for layer, basis in zip(layers(model), U):
        parts: Any = layer.parametrizations
        gradient = matrix(parts.weight.original.grad)
        assert float((gradient @ basis).norm()) < 1e-9 * float(gradient.norm())
        assert all(bool(S.grad.any()) for S in parts.weight[0].scales)


def test_trgp_scales_the_subspace(model: nn.Module) -> None:
    layer = layers(model)[2]
    W = layer.weight.detach().clone()
    bound = [[U] for U in bases(model)]
    TRGP(model, bases(model), bound)
    parts: Any = layer.parametrizations
    with torch.no_grad():
        parts.weight[0].scales[0].mul_(3.0)
    (U,) = bound[2]
    torch.testing.assert_close(layer.weight, W + 2 * W @ U @ U.mT)
