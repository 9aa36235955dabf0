"""On a GPU steps are recorded and replayed, layers batched, products split: all must hold there.

Skipped without a GPU. CONCEPTORS_TEST_DEVICE=cpu runs the same on a CPU, to try the tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors import Shield
from layers.case import Case, there
from layers.cases import CASES, REMARKS, Draw
from layers.probe import moments
from promises.common import Signs, data, network
from shield.common import blocks, mixed
from shield.test_protection import OPTIMIZERS, SPARSE, check

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


# --- the contract -------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_layer_collects_the_same(case: Case) -> None:
    old = case.inputs(Draw(0))
    wanted = moments(case.build(), [old])
    for name, moment in moments(case.build().to(DEVICE), [there(old, DEVICE)]).items():
        assert moment.total.device.type == torch.device(DEVICE).type
        found = moment.correlation().cpu()
        torch.testing.assert_close(found, wanted[name].correlation(), rtol=1e-9, atol=1e-12)


# --- protection ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:nested_from_padded CUDA kernels")
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name != "gain"],  # one number: kept, or learned
    ids=lambda case: case.name,
)
def test_every_layer_keeps_what_it_does(case: Case) -> None:
    optimizers = SPARSE if "sparse" in case.name else OPTIMIZERS
    check(case, optimizers["adamw"], torch.float64, DEVICE)


# --- graphs -------------------------------------------------------------------------------------


def _tokens(seed: int) -> Tensor:
    return torch.randint(11, (16,), generator=torch.Generator().manual_seed(seed))


def _trained(device: str, make: Callable[..., Optimizer], **options: Any) -> dict[str, Tensor]:
    """Two tasks, with more steps than it takes to record them."""
    model = mixed().to(device)
    shield = Shield(model, **options)
    optimizer = shield.guard(make(model.parameters()))
    for task in range(2):
        for step in range(12):
            optimizer.zero_grad()
            model(_tokens(100 * task + step).to(device)).square().mean().backward()
            optimizer.step()
        shield.remember(_tokens(task).to(device))
    assert min(shield.quota().values()) > 0
    return {name: block.cpu() for name, block in blocks(model).items()}


@pytest.mark.filterwarnings("ignore:hardly any:conceptors.shield.ShieldFullWarning")
@pytest.mark.parametrize("options", [{}, {"aperture": 3.0}, {"aperture": 1e4, "hard": True}])
@pytest.mark.parametrize("name", ["sgd", "sgd-momentum", "adamw", "rmsprop"])
def test_steps_are_those_of_the_cpu(name: str, options: dict[str, Any]) -> None:
    ours, theirs = (_trained(device, OPTIMIZERS[name], **options) for device in (DEVICE, "cpu"))
    for block, value in theirs.items():
        torch.testing.assert_close(ours[block], value, rtol=1e-6, atol=1e-7, msg=block)


def _old(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(data(1).to(DEVICE))
    return found


def _hard(model: nn.Module) -> Shield:
    return Shield(model, 1e6, hard=True).remember(data(1).to(DEVICE))


def test_an_interrupted_step_is_finished_after_recording() -> None:
    model = network().to(DEVICE)
    shield = _hard(model)
    optimizer: Any = shield.guard(Signs(model.parameters(), {}))
    before, x = _old(model), data(2, rank=12).to(DEVICE)
    for step in range(10):
        optimizer.interrupt = step == 8
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if not optimizer.interrupt:
            optimizer.step()
            continue
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        assert float((_old(model) - before).norm() / before.norm()) > 1e-3
    assert float((_old(model) - before).norm() / before.norm()) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_scaling(dtype: torch.dtype) -> None:
    model = network().float().to(DEVICE)
    shield = Shield(model, 10.0, hard=True)
    kind = torch.device(DEVICE).type
    old, new = data(1).float().to(DEVICE), data(2, rank=12).float().to(DEVICE)
    shield.remember(old)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=1e-3, fused=kind == "cuda"))
    scaler = torch.amp.GradScaler(kind, enabled=dtype == torch.float16)
    claimed = {name: c.matrix().double() for name, c in shield.conceptors().items()}
    before = blocks(model)
    for _ in range(10):
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=dtype):
            loss = (model(new) - 1).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    for name, block in blocks(model).items():
        change = (block - before[name]).double()
        assert float((change @ claimed[name].to(change)).norm() / change.norm()) < 1e-3


# --- precision ----------------------------------------------------------------------------------


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
    before = layer.weight.detach().float() @ old.T
    start = layer.weight.detach().float().clone()
    drifts = []
    for _ in range(80):
        optimizer.zero_grad()
        x = torch.randn(64, 1024, device=DEVICE).to(dtype)
        (layer(x).float() - 1).square().mean().backward()
        optimizer.step()
        after = layer.weight.detach().float() @ old.T
        drifts.append(float((after - before).norm() / before.norm()))
    assert max(drifts) < (5e-4 if dtype == torch.float32 else 1e-2)
    assert max(drifts[40:]) < 2 * max(drifts[:40])  # it does not add up
    assert float((layer.weight.detach().float() - start).norm() / start.norm()) > 0.05
