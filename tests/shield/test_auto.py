"""aperture="auto": a share of the energy is claimed, and weights that move are drawn back.

While a task is learned, the objective is L + pull/2 · E|ΔW x|² / E|W x|² over the remembered rows
x, preconditioned by F as everything else.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from conceptors import Auto, Shield
from conceptors.shield import guard
from helpers import eye, normal
from shield.common import blocks, gradients, mlp, samples, train, with_unit

# weights are moved by hand here, to be pulled back
pytestmark = pytest.mark.filterwarnings("ignore:weights have moved:conceptors.UnprotectedWarning")


def rows() -> Tensor:
    """Samples `[n, 8]` with three directions in use, of about the same size."""
    return torch.linalg.qr(normal(0, 30, 3)).Q @ normal(1, 3, 8) * 30**0.5  # type: ignore[no-any-return]


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(8, 5).double()


def moved(x: Tensor, aperture: Any = "auto", **options: Any) -> tuple[nn.Linear, Shield]:
    """A layer that has remembered x, and has moved since."""
    layer = linear()
    shield = Shield(layer, aperture, **options).remember(x)
    with torch.no_grad():
        layer.weight.add_(normal(2, 5, 8), alpha=0.1)
        layer.bias.add_(normal(3, 5), alpha=0.1)
    return layer, shield


def block(layer: nn.Module) -> Tensor:
    return blocks(layer)["Linear"][0]


def second_moment(x: Tensor) -> Tensor:
    """E x xᵀ over all rows, with the constant 1 of the bias."""
    wide = with_unit(x)
    return wide.mT @ wide / len(wide)


def output_energy(weights: Tensor, moment: Tensor) -> Tensor:
    """E|W x|²."""
    return (weights @ moment @ weights.mT).trace()


@pytest.mark.parametrize("shape", [(30, 8), (6, 5, 8)], ids=["rows", "sequences"])
def test_one_sgd_step_is_the_closed_form(shape: tuple[int, ...]) -> None:
    """W - η (G + pull ΔW R / E|W x|²) F, with R = E x xᵀ, whatever the samples."""
    x = rows().view(shape)
    layer, shield = moved(x, Auto(share=0.8, pull=3.0))
    claimed = shield.conceptors()["Linear"][0]
    assert int((claimed.singular_values > 0.02).sum()) == 4  # and the others are zero
    optimizer = shield.guard(SGD(layer.parameters(), lr=0.1))
    start, anchor, moment = block(layer), block(linear()), second_moment(x)
    (layer(normal(4, 12, 8)) - 1).square().sum().backward()
    raw = gradients(layer)["Linear"][0]
    optimizer.step()
    force = 3.0 * (start - anchor) @ moment / output_energy(anchor, moment)
    step = 0.1 * (raw + force) @ (eye(9) - claimed.matrix())
    torch.testing.assert_close(block(layer), start - step, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_aperture_claims_a_share_of_the_energy_at_any_scale(size: float) -> None:
    layer = nn.Linear(8, 5, bias=False).double()
    shield = Shield(layer, Auto(share=0.7)).remember(size * rows())
    moment = second_moment(size * rows())[:8, :8]
    claimed = shield.conceptors()["Linear"][0].matrix()
    assert float((claimed @ moment).trace() / moment.trace()) == pytest.approx(0.7, abs=1e-9)


def test_the_pull_of_several_tasks_adds_up() -> None:
    """tr c Q is the sum over the tasks of pull · E|x|² / E|W x|², W as it was after each."""
    layer = linear()
    shield = Shield(layer, Auto(pull=0.3))
    tasks, expected = [rows(), 2 * normal(5, 40, 8)], torch.zeros(1).double()
    for x in tasks:
        shield.remember(x)
        moment = second_moment(x)
        expected += 0.3 * moment.trace() / output_energy(block(layer), moment)
        with torch.no_grad():
            layer.weight *= 2
    odds = shield.conceptors()["Linear"].odds_trace()
    stiffness = shield.state_dict()["tensors"]["claimed/Linear/stiffness"]
    torch.testing.assert_close(stiffness * odds, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    "options", [{"aperture": 3.0}, {"hard": True}, {"aperture": Auto(pull=0.0)}]
)
def test_nothing_is_pulled_otherwise(options: dict[str, Any]) -> None:
    """Numbers are Algorithm 2, hard conceptors let nothing move, and a pull can be left out."""
    layer, shield = moved(rows(), **options)
    optimizer = shield.guard(SGD(layer.parameters(), lr=0.1))
    start = block(layer)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(block(layer), start)


@pytest.mark.parametrize("resumes", [False, True])
def test_the_size_of_a_small_loss_changes_nothing(resumes: bool) -> None:
    """Adam takes the same steps, because the pull shrinks with the loss; also from a checkpoint."""
    finals = []
    for size in (1e-2, 1e-6):
        layer, shield = moved(rows())
        optimizer = shield.guard(torch.optim.Adam(layer.parameters(), eps=1e-30))
        for seed in range(30):
            if resumes and size < 1e-2 and seed == 10:
                saved = copy.deepcopy(
                    (layer.state_dict(), shield.state_dict(), optimizer.state_dict())
                )
                layer = linear()
                shield = Shield(layer)
                optimizer = shield.guard(torch.optim.Adam(layer.parameters(), eps=1e-30))
                layer.load_state_dict(saved[0])
                shield.load_state_dict(saved[1])
                optimizer.load_state_dict(saved[2])
            optimizer.zero_grad()
            (size / (seed + 1) * (layer(normal(seed, 6, 8)) - 1).square().mean()).backward()
            optimizer.step()
        finals.append(block(layer))
    torch.testing.assert_close(finals[0], finals[1], rtol=0, atol=1e-8)


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_scaler_scales_the_pull_too(fused: bool) -> None:
    """A fused optimizer receives scaled gradients, and unscales them by itself."""
    finals = []
    for scale in (1.0, 1024.0):
        layer, shield = moved(rows())
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        optimizer = shield.guard(SGD(layer.parameters(), lr=0.01, momentum=0.5, fused=fused))
        for seed in range(3):
            optimizer.zero_grad()
            scaler.scale((layer(normal(seed, 6, 8)) - 1).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        finals.append(block(layer))
    torch.testing.assert_close(finals[0], finals[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("aperture", "room"), [(Auto(room=0.3), 0.3), (Auto(), 0.2), ("auto", 0.2)], ids=str
)
def test_a_full_layer_leaves_room(aperture: Any, room: float) -> None:
    layer = nn.Linear(20, 20, bias=False).double()
    shield = Shield(layer, aperture)
    for task in range(12):
        shield.remember(normal(task, 8, 20))
    before = layer.weight.detach().clone()
    layer.weight.grad = eye(20)
    shield.guard(SGD(layer.parameters(), lr=1.0)).step()
    free = before - layer.weight.detach()
    assert float(free.trace()) / 20 == pytest.approx(room, abs=1e-6)
    assert shield.quota()["Linear"] > 0.8  # what is claimed is reported as it is


@pytest.mark.parametrize("fails", ["error", "nan"])
def test_decompositions_that_fail_in_float32(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As LAPACK's do for a few matrices with dead units."""

    def failing(solve: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def solved(x: Tensor) -> Any:
            if x.dtype == torch.float64:
                return solve(x)
            if fails == "error":
                raise torch.linalg.LinAlgError("not converged")  # type: ignore[attr-defined]
            return solve(torch.eye(x.shape[-1]).expand_as(x) * torch.nan)

        return solved

    model, x = mlp().float(), samples().float()
    optimizer = torch.optim.AdamW(model.parameters())
    expected = Shield(copy.deepcopy(model)).remember(x).quota()
    for name in ("eigh", "eigvalsh"):
        monkeypatch.setattr(torch.linalg, name, failing(getattr(torch.linalg, name)))
    shield = Shield(model)
    shield.guard(optimizer)
    assert shield.remember(x).quota() == pytest.approx(expected, rel=1e-4)
    train(model, optimizer, x.flip(1), 1)


@pytest.mark.parametrize(
    ("optimizer_type", "factor"), [(torch.optim.AdamW, 2), (SGD, 1), (torch.optim.ASGD, 1)]
)
def test_steps_of_adaptive_optimizers_are_doubled(
    optimizer_type: Any, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    for stretch in (guard._STRETCH, 1.0):
        monkeypatch.setattr(guard, "_STRETCH", stretch)
        layer = linear()
        before = block(layer).clone()
        optimizer = optimizer_type(layer.parameters(), lr=0.01, weight_decay=0.01)
        train(layer, Shield(layer).remember(rows()).guard(optimizer), rows(), steps=1)
        steps.append(block(layer) - before)
    torch.testing.assert_close(steps[0], factor * steps[1])
