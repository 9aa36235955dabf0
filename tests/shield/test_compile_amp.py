"""Compiled models and reduced precision: rows are still seen, steps are still protected."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from conceptors import Shield
from helpers import drift, weights
from shield.common import samples, train

pytestmark = pytest.mark.usefixtures("fresh_compiler")
OLD = samples(1, count=12, inputs=24, rank=4).float() / 2
NEW = samples(2, count=48, inputs=24, rank=4).float() / 2
optimizers = pytest.mark.parametrize("make", [SGD, AdamW])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    first, second, third = nn.Linear(24, 32), nn.Linear(32, 64), nn.Linear(64, 4)
    return nn.Sequential(first, nn.LayerNorm(32), nn.ReLU(), second, nn.Tanh(), third)


def outputs(model: nn.Module, x: Tensor = OLD) -> Tensor:
    return model(x).detach().float()  # type: ignore[no-any-return]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("first", ["compiled", "shielded"])
def test_compiled_models_are_protected(first: str, backend: str) -> None:
    model = network()
    compiled: Any = torch.compile(model, backend=backend)
    shield = Shield(compiled if first == "compiled" else model, 1e3, hard=True)
    assert shield.model is model
    optimizer = shield.guard(AdamW(model.parameters(), lr=1e-2, weight_decay=0.1))
    train(compiled, optimizer, OLD, 3)  # compiled and in use before anything is remembered
    shield.remember([OLD])
    before, new_before = outputs(model), outputs(model, NEW)
    train(compiled, optimizer, NEW, 20)
    assert drift(outputs(model), before) < 1e-4
    assert drift(outputs(model, NEW), new_before) > 0.1


@pytest.mark.parametrize("fused", [False, True], ids=["", "fused"])
@optimizers
def test_gradient_scaler(make: Any, fused: bool) -> None:
    model = network()
    shield = Shield(model, 1e3, hard=True)
    optimizer = shield.guard(make(model.parameters(), lr=1e-2, fused=fused))
    shield.remember([OLD])
    before, scaler = outputs(model), torch.amp.GradScaler("cpu", init_scale=256.0)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (model(x).float() - 1).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(10):
        step(NEW)
    values, scale = weights(model), scaler.get_scale()
    step(torch.full_like(NEW, 1e38))  # a step with infinite gradients is skipped
    assert scaler.get_scale() < scale
    assert all(map(torch.equal, model.parameters(), values))
    step(NEW)
    assert not all(map(torch.equal, model.parameters(), values))
    assert drift(outputs(model), before) < 1e-4


@optimizers
def test_bfloat16_weights(make: Any) -> None:
    """Protected up to the rounding of bfloat16: three digits, and every step is rounded again."""
    drifts = []
    for shielded in (True, False):
        model = network().bfloat16()
        optimizer = make(model.parameters(), lr=1e-2)
        if shielded:
            shield = Shield(model, 30.0, hard=True)
            shield.guard(optimizer)
            shield.remember([OLD.bfloat16()])
        before = outputs(model, OLD.bfloat16())
        train(model, optimizer, NEW.bfloat16(), 40)
        drifts.append(drift(outputs(model, OLD.bfloat16()), before))
    assert drifts[0] < min(0.3, drifts[1] / 10)
