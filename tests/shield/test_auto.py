"""aperture="auto": a share of the energy is claimed, and what moves is drawn back.

While a task is learned, the objective is L + pull/2 · E|ΔW x|² / E|W x|² over the remembered rows
x, preconditioned by F as everything else.
"""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from conceptors import Auto, Shield, UnprotectedWarning
from helpers import normal
from shield.common import blocks, gradients

# weights are moved by hand here, to be pulled back
pytestmark = pytest.mark.filterwarnings("ignore:weights have moved:conceptors.UnprotectedWarning")


def rows(count: int = 30) -> Tensor:
    """Samples `[n, 8]` with three directions in use, of about the same size."""
    found: Tensor = torch.linalg.qr(normal(0, count, 3)).Q @ normal(1, 3, 8) * count**0.5
    return found


def pulled(x: Tensor, aperture: Any = "auto", **options: Any) -> tuple[nn.Linear, Shield]:
    """A layer that has remembered x, and has moved since."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 5).double()
    shield = Shield(layer, aperture, **options).remember(x)
    with torch.no_grad():
        layer.weight.add_(normal(2, 5, 8), alpha=0.1)
        layer.bias.add_(normal(3, 5), alpha=0.1)
    return layer, shield


def stiffness_of(shield: Shield) -> dict[str, Tensor]:
    found: dict[str, Tensor] = shield.state_dict()["stiffness"]
    return found


def block(layer: nn.Module) -> Tensor:
    return next(iter(blocks(layer).values()))[0]


def second_moment(x: Tensor) -> Tensor:
    """E x xᵀ over all rows, with the constant 1 of the bias."""
    wide = torch.cat([x, torch.ones(*x.shape[:-1], 1).double()], -1).flatten(0, -2)
    return wide.mT @ wide / len(wide)


def given_out(weights: Tensor, moment: Tensor) -> Tensor:
    """E|W x|²."""
    return (weights @ moment @ weights.mT).trace()


def anchor() -> Tensor:
    torch.manual_seed(0)
    return block(nn.Linear(8, 5).double())


@pytest.mark.parametrize("shape", [(30, 8), (6, 5, 8)], ids=["rows", "sequences"])
def test_one_sgd_step_is_the_closed_form(shape: tuple[int, ...]) -> None:
    """W - η (G + pull ΔW R / E|W x|²) F, with R = E x xᵀ, whatever the samples."""
    x = rows().view(shape)
    layer, shield = pulled(x, Auto(share=0.8, pull=3.0))
    claimed = shield.conceptors()["Linear"][0]
    assert int((claimed.singular_values > 0.02).sum()) == 4  # and the others are zero
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.1))
    start = block(layer)
    (layer(normal(4, 12, 8)) - 1).square().sum().backward()
    moment = second_moment(x)
    force = 3.0 * (start - anchor()) @ moment / given_out(anchor(), moment)
    optimizer.step()
    G = next(iter(gradients(layer).values()))[0]
    free = torch.eye(9).double() - claimed.matrix()
    torch.testing.assert_close(block(layer), start - 0.1 * (G + force) @ free, rtol=0, atol=1e-12)


def test_the_aperture_claims_a_share_of_the_energy_at_any_scale() -> None:
    for size in (1e-3, 1.0, 1e3):
        layer = nn.Linear(8, 5, bias=False).double()
        shield = Shield(layer, Auto(share=0.7)).remember(size * rows())
        moment = second_moment(size * rows())[:8, :8]
        claimed = shield.conceptors()["Linear"][0].matrix()
        assert float((claimed @ moment).trace() / moment.trace()) == pytest.approx(0.7, abs=1e-9)


def test_the_pull_of_several_tasks_adds_up() -> None:
    """tr c Q is the sum over the tasks of pull · E|x|² / E|W x|², W as it was after each."""
    torch.manual_seed(0)
    layer = nn.Linear(8, 5).double()
    shield = Shield(layer, Auto(pull=0.3))
    first, second = rows(), 2 * normal(5, 40, 8)
    shield.remember(first)
    weights = [block(layer)]
    with torch.no_grad():
        layer.weight *= 2
    with pytest.warns(UnprotectedWarning, match=r"Linear \(by 10\d%\)"):
        shield.remember(second)
    weights.append(block(layer))
    claimed = shield.conceptors()["Linear"]
    found = stiffness_of(shield)["Linear"] * claimed.odds_trace()
    moments = [second_moment(first), second_moment(second)]
    wanted = sum(0.3 * m.trace() / given_out(w, m) for m, w in zip(moments, weights))
    assert isinstance(wanted, Tensor)
    torch.testing.assert_close(found, wanted[None], rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    "options", [{"aperture": 3.0}, {"hard": True}, {"aperture": Auto(pull=0.0)}]
)
def test_nothing_is_pulled_otherwise(options: dict[str, Any]) -> None:
    """Numbers are Algorithm 2, hard conceptors let nothing move, and a pull can be left out."""
    layer, shield = pulled(rows(), **options)
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.1))
    start = block(layer)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    torch.testing.assert_close(block(layer), start, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_scales_the_pull_too(fused: bool) -> None:
    """A fused optimizer is given scaled gradients, and unscales them by itself."""
    finals = []
    for scale in (1.0, 1024.0):
        layer, shield = pulled(rows())
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        made = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.5, fused=fused)
        optimizer = shield.guard(made)
        for seed in range(3):
            optimizer.zero_grad()
            scaler.scale((layer(normal(seed, 6, 8)) - 1).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        finals.append(block(layer))
    torch.testing.assert_close(finals[0], finals[1], rtol=0, atol=1e-12)


def free_space(
    aperture: Literal["auto"] | Auto, tasks: int, hard: bool = False
) -> tuple[Tensor, Tensor]:
    """F as steps of plain SGD have it after so many tasks, and the conceptor of all of them."""
    draw = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    layer = nn.Linear(20, 20, bias=False).double()
    shield = Shield(layer, aperture, hard=hard)
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
