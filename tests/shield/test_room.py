"""Room that is left to steps, however many tasks are remembered: `Auto(room=...)`."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from conceptors import Auto, Shield


def free_space(
    aperture: Literal["auto"] | Auto, tasks: int, hard: bool = False
) -> tuple[Tensor, Tensor]:
    """F as steps of plain SGD have it after so many tasks, and the conceptor of all of them."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    layer = nn.Linear(20, 20, bias=False).double()
    shield = Shield(layer, aperture, hard=hard, warn_at_quota=1.0)
    for _ in range(tasks):
        shield.remember(torch.randn(8, 20, generator=draw).double())
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=1.0))
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.eye(20).double()
    optimizer.step()
    (conceptor,) = shield.conceptors().values()
    return before - layer.weight.detach(), conceptor.matrix()[0]


@pytest.mark.parametrize(
    ("aperture", "room"), [(Auto(room=0.3), 0.3), (Auto(), 0.2), ("auto", 0.2)], ids=str
)
def test_a_full_layer_leaves_room(aperture: Literal["auto"] | Auto, room: float) -> None:
    free, claimed = free_space(aperture, 12)
    assert float(free.trace()) / 20 == pytest.approx(room, abs=1e-6)
    assert float(claimed.trace()) / 20 > 0.8  # what is claimed is told as it is


def test_a_layer_that_is_not_full_is_left_alone() -> None:
    (free, _), (other, _) = free_space(Auto(room=0.3), 1), free_space(Auto(room=0.0), 1)
    assert torch.equal(free, other)


def test_norms_have_no_room_to_leave() -> None:
    """Of two directions a channel, which every task fills."""
    x, steps = torch.randn(300, 6, generator=torch.Generator().manual_seed(0)), []
    for room in (0.0, 0.5):
        norm = nn.LayerNorm(6)
        shield = Shield(norm, Auto(room=room), warn_at_quota=1.0).remember(x)
        optimizer = shield.guard(torch.optim.SGD(norm.parameters(), lr=1.0))
        norm.weight.grad, norm.bias.grad = torch.ones(6), torch.ones(6)
        optimizer.step()
        steps.append(torch.stack([norm.weight.detach() - 1, norm.bias.detach()]))
    assert torch.equal(*steps)


def test_a_hard_shield_lets_nothing_pass_for_the_sake_of_room() -> None:
    free, claimed = free_space(Auto(room=0.5), 12, hard=True)
    assert float(claimed.trace()) / 20 > 0.99
    assert float(free.abs().max()) < 1e-6


def test_old_outputs_still_pull_the_layer_back() -> None:
    """With a full layer the spring is as stiff with room as without: only steps are longer."""
    moved = []
    for room in (0.0, 0.5):
        torch.manual_seed(0)
        layer, old = nn.Linear(6, 4), torch.randn(200, 6)
        shield = Shield(layer, Auto(share=0.99, room=room), warn_at_quota=1.0).remember(old)
        before = layer(old).detach()
        optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.02))
        new, wanted = torch.randn(200, 6), torch.randn(200, 4)
        for _ in range(3000):  # until loss and spring balance
            optimizer.zero_grad()
            nn.functional.mse_loss(layer(new), wanted).backward()
            optimizer.step()
        with torch.no_grad():
            moved.append(float((layer(old) - before).norm() / before.norm()))
    assert moved[1] == pytest.approx(moved[0], rel=0.01)


@pytest.mark.parametrize("room", [-0.1, 1.0, 2.0, float("nan")])
def test_what_is_no_room_is_refused(room: float) -> None:
    with pytest.raises(ValueError, match="Auto room"):
        Auto(room=room)
