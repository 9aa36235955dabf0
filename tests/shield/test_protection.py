"""Later training leaves alone what was remembered: every layer type, every optimizer.

With hard conceptors the outputs on old data stay within rounding, where the same training without
shield moves them far, and the shielded model does learn. With soft conceptors they stay within
the bound that theory gives. How layers share weights, and optimizers split them, is in
`test_sharing.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from conceptors import Shield
from layers.case import there
from layers.cases import BY_NAME, CASES, REMARKS, Case, Draw, Inputs, flat, run
from shield.common import block, gradient
from shield.step.common import root

pytestmark = REMARKS

Make = Callable[..., Optimizer]

STEPS = 25

OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "sgd-momentum": partial(optim.SGD, lr=0.05, momentum=0.9),
    "sgd-nesterov": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, dampening=0),
    "sgd-decay": partial(optim.SGD, lr=0.1, weight_decay=0.1),
    "sgd-foreach": partial(optim.SGD, lr=0.1, momentum=0.5, foreach=True),
    "sgd-fused": partial(optim.SGD, lr=0.1, momentum=0.5, fused=True),
    "adam": partial(optim.Adam, lr=0.02),
    "adam-foreach": partial(optim.Adam, lr=0.02, foreach=True, amsgrad=True),
    "adam-fused": partial(optim.Adam, lr=0.02, fused=True),
    "adamw": partial(optim.AdamW, lr=0.02, weight_decay=0.1),
    "adamw-foreach": partial(optim.AdamW, lr=0.02, weight_decay=0.1, foreach=True),
    "adamw-fused": partial(optim.AdamW, lr=0.02, weight_decay=0.1, fused=True),
    "adamax": partial(optim.Adamax, lr=0.02),
    "nadam": partial(optim.NAdam, lr=0.02, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": partial(optim.RAdam, lr=0.05),
    "rmsprop": partial(optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "rprop": partial(optim.Rprop, lr=0.01, step_sizes=(1e-6, 0.05)),
    "adagrad": partial(optim.Adagrad, lr=0.1),
    "adagrad-fused": partial(optim.Adagrad, lr=0.1, fused=True),
    "adadelta": partial(optim.Adadelta, lr=5.0),
    "asgd": partial(optim.ASGD, lr=0.2, lambd=0.01, weight_decay=0.01),
    "adafactor": partial(optim.Adafactor, lr=0.05),
    "lbfgs": partial(optim.LBFGS, lr=0.2, max_iter=4),
    "lbfgs-wolfe": partial(optim.LBFGS, max_iter=3, line_search_fn="strong_wolfe"),
}
SPARSE: dict[str, Make] = {  # few optimizers take sparse gradients
    "sgd-momentum": OPTIMIZERS["sgd-momentum"],
    "adamw": partial(optim.SparseAdam, lr=0.05),
    "sgd-decay": OPTIMIZERS["adagrad"],
}


def outputs(layer: nn.Module, inputs: Inputs) -> Tensor:
    """Of the layer as it is used: in evaluation mode."""
    was = layer.training
    with torch.no_grad():
        found = flat(run(layer.eval(), inputs)).clone()
    layer.train(was)
    return found


class Outcome(NamedTuple):
    drift: float  # of the outputs on old data, relative
    losses: tuple[float, float]  # on new data, before and after
    moved: float  # the largest change of a weight


def learn(
    case: Case, make: Make, dtype: torch.dtype, *, shielded: bool, device: str = "cpu"
) -> Outcome:
    """Train on new data after old data was remembered (or not)."""
    layer = case.build(dtype).to(device)
    old = there((case.old or case.inputs)(Draw(0, dtype)), device)
    new = there(case.inputs(Draw(1, dtype)), device)
    optimizer = make(layer.parameters())
    if shielded:
        shield = Shield(layer, aperture=1e4, hard=True, rows=None, warn_at_quota=1.0)
        shield.guard(optimizer)
        shield.remember([old], feed=run)
    before, first = outputs(layer, old), outputs(layer, new)
    target = 3 * Draw(2, dtype).normal(len(first)).to(device)
    weights = [p.detach().clone() for p in layer.parameters()]

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (flat(run(layer, new)) - target).square().mean()
        loss.backward()
        return loss

    def drift() -> float:
        return float((outputs(layer, old) - before).norm() / before.norm())

    layer.train()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)  # of dropout
        for step in range(STEPS):
            if isinstance(optimizer, optim.LBFGS):
                optimizer.step(lambda: float(closure().detach()))
            else:
                closure()
                optimizer.step()
            if not shielded and step in (1, 3, 7, 15, 31) and drift() > 0.1:
                break  # far enough to compare with
    losses = [float((y - target).square().mean()) for y in (first, outputs(layer, new))]
    moved = max(float((p.detach() - q).abs().max()) for p, q in zip(layer.parameters(), weights))
    return Outcome(drift(), (losses[0], losses[1]), moved)


@cache
def plain(case: Case, make: Make) -> Outcome:
    return learn(case, make, torch.float32, shielded=False)


def check(case: Case, make: Make, dtype: torch.dtype, device: str = "cpu") -> None:
    kept = learn(case, make, dtype, shielded=True, device=device)
    assert kept.drift < {torch.float32: 1e-5, torch.float64: 1e-10}[dtype]
    assert plain(case, make).drift > 0.1
    assert kept.losses[1] < kept.losses[0]
    assert kept.moved > 0.01


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("sgd-momentum", torch.float64), ("adamw", torch.float32), ("sgd-decay", torch.float32)],
    ids=["sgd-momentum-float64", "adamw-float32", "sgd-decay-float32"],
)
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name != "gain"],  # one number: kept, or learned
    ids=lambda case: case.name,
)
def test_every_layer_keeps_what_it_does(case: Case, name: str, dtype: torch.dtype) -> None:
    check(case, (SPARSE if "sparse" in case.name else OPTIMIZERS)[name], dtype)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    ("layer", "dtype"),
    [
        ("linear-3d", torch.float32),
        ("linear-3d", torch.float64),
        ("conv2d", torch.float32),
        ("attention", torch.float64),
    ],
    ids=["linear-float32", "linear-float64", "conv2d-float32", "attention-float64"],
)
def test_every_optimizer_is_guarded(layer: str, name: str, dtype: torch.dtype) -> None:
    check(BY_NAME[layer], OPTIMIZERS[name], dtype)


# --- soft conceptors: what theory says ---------------------------------------------------


def soft_linear(aperture: float = 3.0, **options: Any) -> tuple[nn.Linear, Shield, Tensor, Tensor]:
    """A linear layer with rows `[n, d + 1]` remembered, and I - A by its definition."""
    layer = nn.Linear(8, 5).double()
    x = Draw(0, batch=30).x(8) @ torch.diag(torch.logspace(0.5, -2, 8, dtype=torch.float64))
    shield = Shield(layer, aperture, warn_at_quota=1.0, **options).remember(x)
    rows = torch.cat([x, torch.ones(30, 1).double()], 1)
    free = torch.linalg.inv(torch.eye(9).double() + aperture**2 * rows.mT @ rows / 30)
    return layer, shield, rows, free


def loss_of(layer: nn.Module, seed: int) -> Tensor:
    draw = Draw(seed, batch=12)
    found: Tensor = (layer(draw.x(8)) - 4 * draw.x(5)).square().sum()
    return found


@pytest.mark.parametrize("aperture", [0.3, 1.0, 3.0, 30.0])
def test_soft_conceptors_stay_within_the_bound_of_theory(aperture: float) -> None:
    """E|ΔW b|² = tr(V F R F Vᵀ) <= |V|² / (4 α²), as σ / (1 + α² σ)² is at most 1 / (4 α²)."""
    layer, shield, rows, free = soft_linear(aperture)
    optimizer = shield.guard(optim.SGD(layer.parameters(), lr=0.01))
    start, raw = block(layer), torch.zeros(5, 9).double()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(layer, step).backward()
        raw -= 0.01 * gradient(layer)
        optimizer.step()
    change = block(layer) - start
    torch.testing.assert_close(change, raw @ free, rtol=0, atol=1e-11)
    energy = (rows @ change.mT).square().sum(1).mean()
    assert 0 < energy <= raw.square().sum() / (4 * aperture**2)
    assert (rows @ raw.mT).square().sum(1).mean() > energy


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "sgd-decay", "adagrad-fused"])
def test_the_bound_holds_for_what_any_optimizer_adds_up(name: str) -> None:
    """V is what the optimizer itself makes of gradients G F^½, and E|V F^½ b|² <= |V|² / α²."""
    layer, shield, rows, free = soft_linear()
    half = root(torch.eye(9) - free)
    optimizer = shield.guard(OPTIMIZERS[name](layer.parameters()))
    twin = nn.Linear(8, 5).double()
    free_optimizer = OPTIMIZERS[name](twin.parameters())
    start, raw = block(layer), torch.zeros(5, 9).double()
    for step in range(20):
        optimizer.zero_grad()
        loss_of(layer, step).backward()
        twin.load_state_dict(layer.state_dict())
        given = gradient(layer) @ half
        twin.weight.grad, twin.bias.grad = given[:, :8].contiguous(), given[:, 8].contiguous()
        free_optimizer.step()
        raw += block(twin) - block(layer)
        optimizer.step()
    change = block(layer) - start
    torch.testing.assert_close(change, raw @ half, rtol=1e-9, atol=1e-11)
    assert (rows @ change.mT).square().sum(1).mean() <= raw.square().sum() / 3.0**2


# --- between backward and step -----------------------------------------------------------


def test_accumulated_gradients_are_projected_once() -> None:
    layer, shield, _, free = soft_linear()
    optimizer = shield.guard(optim.SGD(layer.parameters(), lr=0.1))
    start = block(layer)
    for seed in range(4):
        loss_of(layer, seed).backward()
    total = gradient(layer).clone()
    optimizer.step()
    torch.testing.assert_close(block(layer), start - 0.1 * total @ free, rtol=0, atol=1e-12)


def test_clipping_comes_before_the_projection() -> None:
    layer, shield, _, free = soft_linear()
    optimizer = shield.guard(optim.SGD(layer.parameters(), lr=0.1))
    start = block(layer)
    loss_of(layer, 0).backward()
    raw = gradient(layer).clone()
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    torch.testing.assert_close(norm, raw.norm())  # of what backward gave
    optimizer.step()
    expected = start - 0.1 * raw / (raw.norm() + 1e-6) @ free
    torch.testing.assert_close(block(layer), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["sgd", "sgd-momentum", "adam"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_the_users_own_after_a_step(name: str, set_to_none: bool) -> None:
    layer, shield, _, _ = soft_linear()
    optimizer = shield.guard(OPTIMIZERS[name](layer.parameters()))
    for step in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(layer, step).backward()
        held = layer.weight.grad
        assert held is not None
        raw = held.clone()
        optimizer.step()
        assert layer.weight.grad is held
        assert torch.equal(held, raw)


@pytest.mark.parametrize("name", ["sgd", "sgd-momentum", "adam", "adamw"])
def test_all_ways_to_step_are_the_same(name: str) -> None:
    """With a closure by position or by name, with gradients set to None or to zero."""

    def final(way: str) -> Tensor:
        torch.manual_seed(0)
        layer, shield, _, _ = soft_linear()
        optimizer = shield.guard(OPTIMIZERS[name](layer.parameters()))

        def closure(seed: int) -> float:
            optimizer.zero_grad(set_to_none=way != "zero")
            loss = loss_of(layer, seed)
            loss.backward()
            return float(loss.detach())

        for step in range(5):
            if way == "closure":
                optimizer.step(partial(closure, step))
            elif way == "named":
                assert isinstance(optimizer.step(closure=partial(closure, step)), float)
            else:
                closure(step)
                optimizer.step()
        return block(layer)

    plain_way = final("plain")
    for way in ("closure", "named", "zero"):
        torch.testing.assert_close(final(way), plain_way, rtol=0, atol=0)


def test_a_failing_closure_leaves_the_raw_gradients() -> None:
    layer, shield, _, _ = soft_linear()
    optimizer = shield.guard(optim.SGD(layer.parameters(), lr=0.1))
    loss_of(layer, 0).backward()
    raw, start = gradient(layer), block(layer)

    def closure() -> float:
        raise RuntimeError("the caller's own mistake")

    with pytest.raises(RuntimeError, match="own mistake"):
        optimizer.step(closure)
    assert torch.equal(gradient(layer), raw)
    assert torch.equal(block(layer), start)
    optimizer.step()
    assert torch.equal(gradient(layer), raw)
    assert not torch.equal(block(layer), start)


@pytest.mark.parametrize("name", ["sgd-momentum", "sgd-nesterov", "adam", "rmsprop", "lbfgs"])
def test_what_an_optimizer_gathered_before_does_not_push_into_the_new_task(name: str) -> None:
    layer = nn.Linear(8, 5).double()
    shield = Shield(layer, 1e4, hard=True, warn_at_quota=1.0)
    optimizer = shield.guard(OPTIMIZERS[name](layer.parameters()))

    def step(seed: int) -> None:
        def closure() -> float:
            optimizer.zero_grad()
            loss = loss_of(layer, seed)
            loss.backward()
            return float(loss.detach())

        optimizer.step(closure)

    for seed in range(5):
        step(seed)
    old = Draw(0, batch=3).x(8)
    shield.remember(old)
    before = layer(old).detach()
    for seed in range(5, 15):
        step(seed)
    torch.testing.assert_close(layer(old).detach(), before, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["sgd", "sgd-fused", "adam", "adamw-fused"])
def test_scaled_gradients(name: str) -> None:
    """A gradient scaler scales losses, unscales gradients, and skips steps that overflow."""
    finals = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        layer, shield, _, _ = soft_linear()
        layer, scaler = layer.double(), torch.amp.GradScaler("cpu", init_scale=scale)
        optimizer = shield.guard(OPTIMIZERS[name](layer.parameters()))
        for seed in range(4):
            optimizer.zero_grad()
            loss = loss_of(layer, seed) * (torch.inf if seed == 2 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        finals.append(block(layer))
        assert bool(finals[-1].isfinite().all())
    torch.testing.assert_close(finals[0], finals[1], rtol=1e-9, atol=1e-12)
