"""Whatever steps the weights: protected, refused or told."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from conceptors import Shield, UnprotectedWarning
from promises.common import Signs, data, drift, network, outputs, shielded, train


class SAM(Optimizer):
    """Sharpness-aware minimisation, as people write it: puts a copy in place of `p.data`."""

    def __init__(self, params: Any, rho: float = 0.05, **options: Any) -> None:
        super().__init__(params, {"rho": rho, **options})
        self.base = torch.optim.SGD(self.param_groups, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        norms = [p.grad.norm() for g in self.param_groups for p in g["params"]]
        scale = self.param_groups[0]["rho"] / torch.stack(norms).norm()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.data.clone()
                p.add_(p.grad * scale)
        with torch.enable_grad():
            closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old"]
        self.base.step()
        return loss


class ScheduleFree(torch.optim.SGD):
    """Trains between two sequences of weights, and evaluates one of them."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


class Lookahead:
    """Steps another optimizer, and every third time goes back half-way."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0
        self.param_groups = optimizer.param_groups
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def step(self) -> None:
        self.optimizer.step()
        self.count += 1
        if self.count % 3 == 0:
            fast = [p for g in self.param_groups for p in g["params"]]
            for slow, p in zip(self.slow, fast):
                slow.lerp_(p.detach(), 0.5)
                p.data.copy_(slow)


def test_an_optimizer_that_rebinds_weights_is_corrected_in_the_new_place() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(SAM(model.parameters(), lr=0.1, momentum=0.9))
    before, start, x = outputs(model), network().state_dict(), data(2, rank=12)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return float(loss.detach())

    first = closure()
    for _ in range(20):
        optimizer.step(closure)
    assert drift(model, before) < 1e-10
    assert closure() < 0.9 * first
    assert any(not torch.equal(a, b) for a, b in zip(start.values(), model.state_dict().values()))


def test_an_optimizer_that_evaluates_other_weights_is_refused_by_name() -> None:
    model = network()
    shield = shielded(model)
    with pytest.raises(ValueError, match="ScheduleFree evaluates other weights than it trains"):
        shield.guard(ScheduleFree(model.parameters(), lr=0.1))


def test_a_wrapped_optimizer_is_guarded_inside() -> None:
    model = network()
    shield = shielded(model)
    before = outputs(model)
    optimizer: Any = Lookahead(torch.optim.AdamW(model.parameters(), lr=1e-2))
    assert shield.guard(optimizer) is optimizer
    train(model, optimizer, 10)  # the last step corrects what came before
    assert drift(model, before) < 1e-10


@pytest.mark.parametrize("soft", [False, True])
def test_an_optimizer_without_a_guard_is_told_at_its_first_step(soft: bool) -> None:
    model = network()
    shield = Shield(model).remember(data(1)) if soft else shielded(model)
    guarded = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, guarded, 2)
    forgotten = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UnprotectedWarning, match="SGD steps weights .* no guard holds it: 0, ") as w:
        train(model, forgotten, 3)
    assert len(w) == 1
    assert w[0].filename.endswith("common.py")  # where step() was called


def test_optimizers_of_other_weights_and_first_tasks_are_nobodys_business() -> None:
    model = network()
    free = nn.Linear(12, 3).double()
    shield = Shield(model, 1e6, hard=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
        shield.remember(data(1))
        train(free, torch.optim.SGD(free.parameters(), lr=0.1))
        shield.detach()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert shield.n_tasks == 1


def test_a_step_that_was_interrupted_is_corrected_by_the_next() -> None:
    for then in ("step", "remember", "detach", "state_dict"):
        model = network()
        shield = shielded(model, keep_tasks=True)
        optimizer: Any = shield.guard(Signs(model.parameters(), {}))
        before = outputs(model)
        train(model, optimizer, 2)
        optimizer.interrupt = True
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, 1)
        optimizer.interrupt = False
        assert drift(model, before) > 1e-3
        actions: dict[str, Any] = {
            "step": lambda m=model, o=optimizer: train(m, o, 1),
            "remember": lambda s=shield: s.remember(data(3)),
            "detach": shield.detach,
            "state_dict": shield.state_dict,
        }
        actions[then]()
        assert drift(model, before) < 1e-10, then


def test_a_step_to_nan_and_a_restore_recover() -> None:
    model = network()
    shield = shielded(model)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    before = outputs(model)
    train(model, optimizer, 2)
    good, state = {k: v.clone() for k, v in model.state_dict().items()}, optimizer.state_dict()
    for p in model.parameters():
        p.grad = torch.full_like(p, torch.nan)
    optimizer.step()
    assert not bool(outputs(model).isfinite().all())
    model.load_state_dict(good)
    optimizer.load_state_dict(state)
    for values in optimizer.state.values():
        values["momentum_buffer"].zero_()
    train(model, optimizer, 5)
    assert drift(model, before) < 1e-10


def test_guards_of_optimizers_that_are_gone_are_dropped() -> None:
    model = network()
    shield = shielded(model)
    gone = []
    for _ in range(3):
        optimizer = shield.guard(torch.optim.AdamW(model.parameters()))
        train(model, optimizer, 1)
        gone.append(weakref.ref(optimizer))
        del optimizer
        gc.collect()
    assert [reference() for reference in gone] == [None] * 3
    assert {row.done for row in shield.explain()} == {"no guarded optimizer steps it"}
