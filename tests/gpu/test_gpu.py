"""On a GPU steps are recorded and replayed, layers batched, products split: all is the same there.

Skipped without a GPU. CONCEPTORS_TEST_DEVICE=cpu runs the same on a CPU, to try the tests.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors import Shield
from helpers import drift
from layers.case import Case
from layers.cases import REMARKS
from promises.common import Signs, data, network
from shield.common import blocks, mixed, train
from shield.test_protection import OPTIMIZERS, SPARSE, check, with_room

DEVICE = os.environ.get("CONCEPTORS_TEST_DEVICE", "cuda")
pytestmark = [
    *REMARKS,
    pytest.mark.skipif(
        DEVICE.startswith("cuda") and not torch.cuda.is_available(), reason="needs a GPU"
    ),
]


@pytest.fixture(autouse=True)
def with_tf32() -> Iterator[None]:
    """As many users have it; none of this may depend on it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision(before)


@pytest.mark.filterwarnings("ignore:nested_from_padded CUDA kernels")
@with_room
def test_every_layer_keeps_what_it_does(case: Case) -> None:
    optimizers = SPARSE if "sparse" in case.name else OPTIMIZERS
    check(case, optimizers["adamw"], torch.float64, DEVICE)


def _trained(device: str, make: Callable[..., Optimizer], **options: Any) -> dict[str, Tensor]:
    """Two tasks, with more steps than it takes to record them."""
    model, draw = mixed().to(device), torch.Generator().manual_seed(0)
    shield = Shield(model, **options)
    optimizer = shield.guard(make(model.parameters()))
    for _ in range(2):
        tokens = torch.randint(11, (13, 16), generator=draw).to(device)
        for x in tokens[1:]:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        shield.remember(tokens[0])
    assert min(shield.quota().values()) > 0
    return {name: block.cpu() for name, block in blocks(model).items()}


@pytest.mark.filterwarnings("ignore::conceptors.shield.ShieldFullWarning")
@pytest.mark.parametrize("options", [{}, {"aperture": 3.0}, {"aperture": 1e4, "hard": True}])
@pytest.mark.parametrize("name", ["sgd", "sgd-momentum", "adamw", "rmsprop"])
def test_steps_are_those_of_the_cpu(name: str, options: dict[str, Any]) -> None:
    here, there = (_trained(device, OPTIMIZERS[name], **options) for device in ("cpu", DEVICE))
    for block, value in here.items():
        torch.testing.assert_close(there[block], value, rtol=1e-6, atol=1e-7, msg=block)


def test_an_interrupted_step_is_finished_after_recording() -> None:
    model, old = network().to(DEVICE), data(1).to(DEVICE)
    shield = Shield(model, 1e6, hard=True).remember(old)
    optimizer: Any = shield.guard(Signs(model.parameters(), {}))
    before, new = model(old).detach(), data(2, rank=12).to(DEVICE)
    train(model, optimizer, new, 8)
    optimizer.interrupt = True
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, new, 1)
    optimizer.interrupt = False
    assert drift(model(old), before) > 1e-3
    train(model, optimizer, new, 1)
    assert drift(model(old), before) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_scaling(dtype: torch.dtype) -> None:
    model = network().float().to(DEVICE)
    shield = Shield(model, 10.0, hard=True)
    kind = torch.device(DEVICE).type
    old, new = data(1).float().to(DEVICE), data(2, rank=12).float().to(DEVICE)
    shield.remember(old)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-3, fused=kind == "cuda"))
    scaler = torch.amp.GradScaler(kind, enabled=dtype == torch.float16)
    before = blocks(model)
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype):
            loss = (model(new) - 1).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for name, claimed in shield.conceptors().items():
        change = (blocks(model)[name] - before[name]).double()
        assert float((change @ claimed.matrix().to(change)).norm() / change.norm()) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wide_layer_is_protected_to_the_precision_of_its_weights(dtype: torch.dtype) -> None:
    """Large enough for split products, 1024 x 1024 at rank 128.

    What is taken off a step is rounded to TF32, 2⁻¹¹ of it at most, and the next step mends that.
    """
    torch.manual_seed(0)
    layer = nn.Linear(1024, 1024, bias=False).to(DEVICE, dtype)
    old = (torch.randn(512, 128) @ torch.randn(128, 1024) / 11).to(DEVICE)
    shield = Shield(layer, 30.0, hard=True, rank=128).remember(old.to(dtype))
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters(), lr=1e-3))
    start = layer.weight.detach().float().clone()
    drifts = []
    for _ in range(80):
        train(layer, optimizer, torch.randn(64, 1024, device=DEVICE).to(dtype), 1)
        drifts.append(drift(layer.weight.float() @ old.T, start @ old.T))
    assert max(drifts) < (5e-4 if dtype == torch.float32 else 1e-2)
    assert max(drifts[40:]) < 2 * max(drifts[:40])  # it does not add up
    assert drift(layer.weight.float(), start) > 0.05


@pytest.mark.filterwarnings("ignore:few free directions:conceptors.shield.ShieldFullWarning")
def test_plain_steps_of_a_wide_layer_have_the_precision_of_float32() -> None:
    """Nearly all of this gradient is claimed: an error of 1e-6 of it would exceed what is applied.

    On tensor cores rounding has a direction, and adds up over the steps of a task.
    """
    x = torch.rand(1000, 784, generator=torch.Generator().manual_seed(0))
    changes = []
    for device, dtype in ((DEVICE, torch.float32), ("cpu", torch.float64)):
        layer = nn.Linear(784, 800).to(device, dtype)
        nn.init.zeros_(layer.weight)
        shield, rows = Shield(layer, 800.0), x.to(device, dtype)
        optimizer = shield.remember(rows).guard(torch.optim.SGD(layer.parameters(), lr=1.0))
        layer(rows[:64]).mul(rows[64:128, :1] - 0.5).sum().backward()
        assert layer.weight.grad is not None
        gradient = layer.weight.grad.cpu().double().clone()  # the step changes it
        optimizer.step()
        changes.append(layer.weight.detach().cpu().double() @ x.double().T)
    error = (changes[0] - changes[1]).norm() / (gradient @ x.double().T).norm()
    assert float(error) < 3e-7
