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
from shield.common import block, gradient, quiet, samples, train

pytestmark = REMARKS

Make = Callable[..., Optimizer]

STEPS = 25

OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(optim.SGD, lr=0.1),
    "sgd-momentum": partial(optim.SGD, lr=0.05, momentum=0.9),
    "sgd-nesterov": partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, dampening=0),
    "sgd-decay": partial(optim.SGD, lr=0.1, weight_decay=0.1),
    "sgd-fused": partial(optim.SGD, lr=0.1, momentum=0.5, fused=True),
    "adam": partial(optim.Adam, lr=0.02),
    "adamw": partial(optim.AdamW, lr=0.02, weight_decay=0.1),
    "adamw-fused": partial(optim.AdamW, lr=0.02, weight_decay=0.1, fused=True),
    "adamax": partial(optim.Adamax, lr=0.02),
    "nadam": partial(optim.NAdam, lr=0.02, decoupled_weight_decay=True, weight_decay=0.1),
    "radam": partial(optim.RAdam, lr=0.05),
    "adadelta": partial(optim.Adadelta, lr=5.0),
    "asgd": partial(optim.ASGD, lr=0.2, lambd=0.01, weight_decay=0.01),
    "rmsprop": partial(optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "rprop": partial(optim.Rprop, lr=0.01, step_sizes=(1e-6, 0.05)),
    "adagrad": partial(optim.Adagrad, lr=0.1),
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
        shield = Shield(layer, aperture=1e4, hard=True)
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
    ("layer", "dtype"), [("linear-3d", torch.float32), ("attention", torch.float64)], ids=str
)
def test_every_optimizer_is_guarded(layer: str, name: str, dtype: torch.dtype) -> None:
    check(BY_NAME[layer], OPTIMIZERS[name], dtype)


# --- soft conceptors: what theory says ---------------------------------------------------


def soft_linear(aperture: float = 3.0, **options: Any) -> tuple[nn.Linear, Shield, Tensor, Tensor]:
    """A linear layer with rows `[n, d + 1]` remembered, and I - A by its definition."""
    layer = nn.Linear(8, 5).double()
    x = Draw(0, batch=30).x(8) @ torch.diag(torch.logspace(0.5, -2, 8, dtype=torch.float64))
    shield = Shield(layer, aperture, **options).remember(x)
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


# --- between backward and step -----------------------------------------------------------


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


# --- statistics ------------------------------------------------------------------------------


def test_batchnorm_keeps_the_statistics_of_remembered_tasks() -> None:
    for policy, moves in {"freeze": False, "follow": True}.items():
        model: Any = nn.Sequential(
            nn.Linear(10, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 3)
        ).double()
        shield = quiet(model, 1e4, hard=True, batchnorm=policy)
        optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=1e-3))
        train(model, optimizer, samples(), steps=5)  # statistics follow the first task
        mean = model[1].running_mean.clone()
        assert float(mean.abs().max()) > 0.01
        shield.remember(samples())
        model.eval()
        old = model(samples()).detach()
        model.train()
        train(model, optimizer, samples(2), steps=5)
        assert model[1].training
        assert torch.equal(mean, model[1].running_mean) != moves
        model.eval()
        drift = float((model(samples()).detach() - old).abs().max() / old.abs().max())
        assert (drift > 1e-3) == moves
        if not moves:
            assert drift < 1e-10
