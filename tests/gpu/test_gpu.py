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

from conceptors import Conceptor, Shield
from conceptors._internal.precision import exactly, sharp_product, split_tf32
from layers.case import Case, there
from layers.cases import CASES, REMARKS, Draw
from layers.probe import moments
from promises.common import Signs, data, network
from promises.test_optimizers import SAM
from shield.step.common import blocks, mixed
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


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("sgd-momentum", torch.float64), ("adamw", torch.float64), ("sgd-decay", torch.float64)],
)
@pytest.mark.filterwarnings("ignore:nested_from_padded CUDA kernels")
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name != "gain"],  # one number: kept, or learned
    ids=lambda case: case.name,
)
def test_every_layer_keeps_what_it_does(case: Case, name: str, dtype: torch.dtype) -> None:
    optimizers = SPARSE if "sparse" in case.name else OPTIMIZERS
    check(case, optimizers[name], dtype, DEVICE)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_guarded(name: str) -> None:
    if name == "adagrad-fused" and DEVICE != "cpu":
        pytest.skip("torch has it for CPUs only")
    case = next(case for case in CASES if case.name == "linear-3d")
    check(case, OPTIMIZERS[name], torch.float64, DEVICE)


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


@pytest.mark.filterwarnings("ignore:hardly anything:conceptors.ShieldFullWarning")
@pytest.mark.parametrize("options", [{}, {"aperture": 3.0}, {"aperture": 1e4, "hard": True}])
@pytest.mark.parametrize("name", ["sgd", "sgd-momentum", "adamw", "adam-foreach", "rmsprop"])
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


def test_weights_that_move_in_memory_are_followed() -> None:
    """Recordings read and write fixed memory."""
    model = network().to(DEVICE)
    shield = _hard(model)
    optimizer = shield.guard(SAM(model.parameters(), lr=0.1, momentum=0.9))
    before, x = _old(model), data(2, rank=12).to(DEVICE)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return float(loss.detach())

    first = closure()
    for _ in range(10):
        optimizer.step(closure)
    assert closure() < first
    assert float((_old(model) - before).norm() / before.norm()) < 1e-10


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


def test_directions_of_float32_stay_orthonormal() -> None:
    """Products of float32 are rounded to 10 bits here, which would look like slanted directions."""
    U = torch.linalg.qr(torch.randn(4, 600, 200, device=DEVICE)).Q
    C = Conceptor.from_spectrum(U, torch.full((4, 200), 0.5, device=DEVICE))
    vectors = C.to(torch.float64).spectrum[0]
    apart = vectors.mT @ vectors - torch.eye(200, dtype=torch.float64, device=DEVICE)
    assert float(apart.abs().amax()) < 1e-12


@pytest.mark.parametrize("size", [256, 2048])
def test_thin_products_are_nearly_as_exact_as_float32(size: int) -> None:
    """Tensor cores round each sum down: 5e-6 over 2048 terms, where float32 has 3e-7."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(size, size, generator=draw).to(DEVICE)
    vectors = torch.linalg.qr(torch.randn(size, 128, generator=draw).to(DEVICE)).Q
    wanted = weight.double() @ vectors.double()
    found = sharp_product(weight, split_tf32(vectors))
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5
    with exactly():
        assert float((weight @ vectors - wanted).norm() / wanted.norm()) < 1e-6


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


def test_logic_of_conceptors() -> None:
    a, b = (Conceptor.from_states(data(s, 50, 20, 8), 3.0) for s in (1, 2))
    for wanted, found in (
        (a | b, a.to(DEVICE) | b.to(DEVICE)),
        (a & b, a.to(DEVICE) & b.to(DEVICE)),
        ((a | b).harden(), (a.to(DEVICE) | b.to(DEVICE)).harden()),
    ):
        torch.testing.assert_close(found.to("cpu").matrix(), wanted.matrix(), rtol=0, atol=1e-9)


def test_a_state_moves_between_devices() -> None:
    model = network().to(DEVICE)
    shield = _hard(model)
    other = network()
    second = Shield(other, 1e6, hard=True)
    assert second.load_state_dict(shield.state_dict()).fits
    third = Shield(network().to(DEVICE), 1e6, hard=True)
    assert third.load_state_dict(second.state_dict()).fits
    assert third.quota() == pytest.approx(shield.quota())
