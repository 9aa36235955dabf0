"""Compiled models and reduced precision: rows are still seen, steps are still protected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from conceptors import Shield
from helpers import weights

pytestmark = pytest.mark.usefixtures("fresh_compiler")
BACKENDS = ("eager", "aot_eager")


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(24, 32),
        nn.LayerNorm(32),
        nn.ReLU(),
        nn.Linear(32, 64),
        nn.Tanh(),
        nn.Linear(64, 4),
    ).to(dtype)


def rows(seed: int, count: int = 48, dtype: torch.dtype = torch.float32) -> Tensor:
    """Samples of one task: `[count, 24]` in four dimensions."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator) @ torch.randn(4, 24, generator=generator)
    return (x / 2).to(dtype)


OLD, NEW = rows(1, 12), rows(2)


def train(
    call: Callable[[Tensor], Tensor], optimizer: Optimizer, x: Tensor, steps: int = 20
) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (call(x).float() - 1).square().mean().backward()
        optimizer.step()


def moved(model: nn.Module, before: Tensor, x: Tensor) -> float:
    """How far outputs are from where they were, relative."""
    with torch.no_grad():
        return float((model(x).float() - before.float()).norm() / before.float().norm())


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(x).clone()
    return found


def same(model: nn.Module, values: list[Tensor]) -> bool:
    return all(torch.equal(p, value) for p, value in zip(model.parameters(), values))


# --- torch.compile ----------------------------------------------------------------------------


def compiled_before(model: nn.Module, backend: str) -> tuple[Shield, Callable[..., Any]]:
    compiled = torch.compile(model, backend=backend)
    assert isinstance(compiled, nn.Module)
    return Shield(compiled, 1e3, hard=True), compiled


def compiled_after(model: nn.Module, backend: str) -> tuple[Shield, Callable[..., Any]]:
    shield = Shield(model, 1e3, hard=True)
    return shield, torch.compile(model, backend=backend)


WAYS = {
    "before": compiled_before,
    "after": compiled_after,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_compiled_models_are_protected(way: str, backend: str) -> None:
    model = network()
    shield, call = WAYS[way](model, backend)
    assert shield.model is model
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-2, weight_decay=0.1))
    train(call, optimizer, OLD, 3)  # compiled and in use before anything is remembered
    shield.remember([OLD])
    plain = network()
    plain.load_state_dict(model.state_dict())
    expected = Shield(plain, 1e3, hard=True).remember([OLD])
    for name, conceptor in expected.conceptors().items():
        assert torch.allclose(conceptor.matrix(), shield.conceptors()[name].matrix(), atol=1e-6)
    before, new_before = outputs(model, OLD), outputs(model, NEW)
    train(call, optimizer, NEW)
    assert moved(model, before, OLD) < 1e-4
    assert moved(model, new_before, NEW) > 0.1


# --- autocast and gradient scaling ------------------------------------------------------------


@pytest.mark.parametrize("make", [SGD, AdamW], ids=lambda kind: str(kind.__name__))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(make: type[Optimizer], dtype: torch.dtype) -> None:
    """Weights are float32, so the protection is exact whatever the forward pass rounds."""
    model = network()
    shield = Shield(model, 10.0, hard=True)
    optimizer = shield.guard(make(model.parameters(), lr=1e-2))  # type: ignore[call-arg]
    with torch.autocast("cpu", dtype=dtype):
        shield.remember([OLD])
    claimed = {name: c.matrix() for name, c in shield.conceptors().items()}
    values = {name: p.data for name, p in model.named_parameters()}
    start = {name: value.clone() for name, value in values.items()}
    for _ in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = (model(NEW).float() - 1).square().mean()
        loss.backward()
        optimizer.step()
    for name in ("0", "3", "5"):  # the change of [W | b], times what is claimed, is nothing
        change = torch.cat(
            [
                values[f"{name}.weight"] - start[f"{name}.weight"],
                (values[f"{name}.bias"] - start[f"{name}.bias"])[:, None],
            ],
            1,
        ).double()
        assert float(change.norm()) > 1e-3
        assert float((change @ claimed[name][0]).norm() / change.norm()) < 1e-4


def scaled_step(scaler: Any, model: nn.Module, optimizer: Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(x).float() - 1).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("fused", [False, True], ids=["", "fused"])
@pytest.mark.parametrize("make", [SGD, AdamW], ids=lambda kind: str(kind.__name__))
def test_gradient_scaler(make: type[Optimizer], fused: bool) -> None:
    model = network()
    shield = Shield(model, 1e3, hard=True)
    optimizer = shield.guard(make(model.parameters(), lr=1e-2, fused=fused))  # type: ignore[call-arg]
    shield.remember([OLD])
    before = outputs(model, OLD)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for _ in range(10):
        scaled_step(scaler, model, optimizer, NEW)
    assert moved(model, before, OLD) < 1e-4

    # a step with infinite gradients is skipped: nothing changes
    values, scale = weights(model), scaler.get_scale()
    scaled_step(scaler, model, optimizer, torch.full_like(NEW, 1e38))
    assert scaler.get_scale() < scale
    assert same(model, values)

    scaled_step(scaler, model, optimizer, NEW)  # and the next one is taken, and protected
    assert not same(model, values)
    assert moved(model, before, OLD) < 1e-4


# The scaler calls a fused optimizer's step in any case; the step finds out by itself.


# --- weights in half precision ----------------------------------------------------------------


@pytest.mark.parametrize("make", [SGD, AdamW], ids=lambda kind: str(kind.__name__))
def test_bfloat16_weights(make: type[Optimizer]) -> None:
    """Protected up to the rounding of bfloat16: three digits, and every step is rounded again."""
    found = []
    for shielded in (True, False):
        model = network(torch.bfloat16)
        optimizer: Optimizer = make(model.parameters(), lr=1e-2)  # type: ignore[call-arg]
        if shielded:
            shield = Shield(model, 30.0, hard=True)
            optimizer = shield.guard(optimizer)
            shield.remember([OLD.bfloat16()])
        before = outputs(model, OLD.bfloat16())
        train(model, optimizer, NEW.bfloat16(), 40)
        assert all(p.dtype == torch.bfloat16 for p in model.parameters())
        found.append(moved(model, before, OLD.bfloat16()))
    protected, plain = found
    assert protected < 0.3
    assert protected < plain / 10
