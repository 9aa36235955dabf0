"""SGD is pulled no stiffer than its steps can follow, whatever its rate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conceptors.algebra.targets import Auto
from helpers import normal
from shield.step.common import odds
from shield.step.pulled import anchor, block, pulled, rows, stiffness_of

# weights are moved by hand here, to be pulled back
pytestmark = pytest.mark.filterwarnings("ignore:weights have moved:conceptors.UnprotectedWarning")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_pulled_no_stiffer_than_its_steps_can_follow(
    momentum: float, dtype: torch.dtype
) -> None:
    """Half the way back at most in one step: c <= 1 / (2 η), whichever way steps are made."""
    layer, shield = pulled(1e3 * rows(), Auto(pull=1e4))
    assert float(stiffness_of(shield)["Linear"]) > 1e3
    layer.to(dtype)
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.1, momentum=momentum))
    start = block(layer).double()
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    claimed = shield.conceptors()["Linear"][0]
    Q = odds(claimed, least=0.02)
    A = Q @ torch.linalg.inv(Q + torch.eye(9))
    wanted = -0.5 * (start - anchor()) @ A
    size = 2e-3 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(block(layer).double() - start, wanted, rtol=0, atol=size)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_steady_on_very_large_inputs(momentum: float, nesterov: bool) -> None:
    x = 1e4 * rows()
    layer, shield = pulled(x, Auto(pull=1e4))
    options: Any = {"lr": 0.1, "momentum": momentum, "nesterov": nesterov and momentum > 0}
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), **options))
    start = float((x @ (block(layer) - anchor())[:, :8].mT).norm())
    for seed in range(300):
        optimizer.zero_grad()
        (layer(normal(seed, 6, 8)) - 1).square().mean().backward()
        optimizer.step()
    assert bool(block(layer).isfinite().all())
    assert float((x @ (block(layer) - anchor())[:, :8].mT).norm()) < start


def test_a_rate_that_was_raised_by_hand_is_followed_as_well() -> None:
    """Schedulers tell in advance how far they will go; a loop that sets rates does not."""
    layer, shield = pulled(1e3 * rows(), Auto(pull=1e4))
    groups: list[dict[str, Any]] = [
        {"params": [layer.weight]},
        {"params": [layer.bias], "lr": 1e-5},
    ]
    optimizer = torch.optim.SGD(groups, lr=1e-4, momentum=0.9)
    shield.guard(optimizer)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = min(1e-4 * (1 + step), 0.01)
        optimizer.zero_grad()
        (layer(normal(step, 6, 8)) - 1).square().mean().backward()
        optimizer.step()
    assert float((block(layer) - anchor()).abs().max()) < 1
