"""How a guarded optimizer behaves around its steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from shield.common import block, gradient, samples
from shield.step.common import root

data = partial(samples, count=15)


def network() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 3)).double()


def backward(model: nn.Module, x: Tensor) -> None:
    (model(x) - 1).square().mean().backward()


def claimed(shield: Shield, name: str) -> Tensor:
    return shield.conceptors()[name][0].matrix()


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_the_users_gradients_stay_as_they_were(kind: str) -> None:
    model = network()
    shield = Shield(model, 5.0).remember(data())
    parameters = model.parameters()
    optimizer = shield.guard(
        torch.optim.SGD(parameters, lr=0.1) if kind == "sgd" else torch.optim.AdamW(parameters)
    )
    backward(model, data(2))
    before = [p.grad for p in model.parameters()]
    values = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    for parameter, same, value in zip(model.parameters(), before, values):
        assert parameter.grad is same
        assert torch.equal(parameter.grad, value)


def test_two_steps_on_one_gradient_project_it_once_each() -> None:
    model = network()
    shield = Shield(model, 1.0).remember(data())
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    free = torch.eye(11).double() - claimed(shield, "0")
    backward(model, data(2))
    start, raw = block(model[0]), gradient(model[0])
    optimizer.step()
    optimizer.step()
    torch.testing.assert_close(block(model[0]), start - 0.2 * raw @ free, rtol=0, atol=1e-13)


def test_gradients_and_steps_of_any_other_optimizer_share_the_projection() -> None:
    """Either is multiplied by F^½: what the optimizer makes of G F^½ is V, and the step V F^½."""
    model, plain = network(), network()
    shield = Shield(model, 1.0).remember(data())
    half = root(claimed(shield, "0"))
    for m, guard in ((model, shield.guard), (plain, lambda o: o)):
        optimizer = guard(torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1))
        backward(m, data(2))
        if m is plain:
            given = gradient(m[0]) @ half
            m[0].weight.grad, m[0].bias.grad = given[:, :10], given[:, 10]
        optimizer.step()
    start = block(network()[0])
    change = block(plain[0]) - start
    torch.testing.assert_close(block(model[0]), start + change @ half, rtol=0, atol=1e-12)


def test_momentum_of_an_old_task_does_not_push_into_its_space() -> None:
    model = network()
    shield = Shield(model, 1e4, hard=True)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    for _ in range(5):
        optimizer.zero_grad()
        backward(model, data())
        optimizer.step()
    shield.remember(data())
    old = model(data()).detach()
    for _ in range(10):
        optimizer.zero_grad()
        backward(model, data(2))
        optimizer.step()
    torch.testing.assert_close(model(data()).detach(), old, rtol=1e-10, atol=1e-10)


def test_momentum_is_projected_at_a_new_task_only() -> None:
    """With soft conceptors a second projection would show; guarding again must not make one."""
    model, twin = network(), network()
    shields = [Shield(model, 1.0), Shield(twin, 1.0)]
    optimizers = []
    for shield in shields:
        optimizers.append(
            shield.guard(torch.optim.SGD(shield.model.parameters(), lr=0.05, momentum=0.9))
        )
        shield.remember(data())
    for step in range(4):
        for shield, optimizer in zip(shields, optimizers):
            if step == 2 and shield is shields[1]:
                shield.guard(optimizer)
                shield.refresh()
                shield.similarity(data(2))
            optimizer.zero_grad()
            backward(shield.model, data(2))
            optimizer.step()
    assert torch.equal(model[0].weight, twin[0].weight)


def test_nothing_is_projected_before_the_first_task() -> None:
    model, plain = network(), network()
    shield = Shield(model)
    for m, guard in ((model, shield.guard), (plain, lambda o: o)):
        optimizer = guard(torch.optim.Adam(m.parameters(), lr=0.01))
        for _ in range(3):
            optimizer.zero_grad()
            backward(m, data())
            optimizer.step()
    assert torch.equal(model[0].weight, plain[0].weight)


def test_guarding_twice_guards_once() -> None:
    model = network()
    shield = Shield(model).remember(data())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert shield.guard(shield.guard(optimizer)) is optimizer
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_a_step_that_fails_leaves_gradients_and_weights_usable() -> None:
    class Failing(torch.optim.SGD):
        fail = True

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            if self.fail:
                raise RuntimeError("out of memory")
            return super().step(closure)

    model = network()
    shield = Shield(model, 1e4, hard=True).remember(data())
    optimizer = shield.guard(Failing(model.parameters(), lr=0.1))
    old = model(data()).detach()
    backward(model, data(2))
    values = [p.grad.clone() for p in model.parameters()]
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step()
    Failing.fail = False
    optimizer.step()
    assert all(torch.equal(p.grad, v) for p, v in zip(model.parameters(), values))
    torch.testing.assert_close(model(data()).detach(), old, rtol=1e-10, atol=1e-10)


def test_parameter_groups_added_later_are_guarded() -> None:
    model = network()
    shield = Shield(model, 1e4, hard=True).remember(data())
    optimizer = shield.guard(torch.optim.AdamW(model[2].parameters(), lr=0.01))
    backward(model, data(2))
    optimizer.step()
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.02})
    old = model(data()).detach()
    for _ in range(5):
        optimizer.zero_grad()
        backward(model, data(2))
        optimizer.step()
    torch.testing.assert_close(model(data()).detach(), old, rtol=1e-9, atol=1e-9)


def test_weight_decay_switched_on_between_steps_is_noticed() -> None:
    model = network()
    shield = Shield(model, 1e4, hard=True).remember(data())
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.05))
    old = model(data()).detach()
    for step in range(6):
        optimizer.param_groups[0]["weight_decay"] = 0.5 if step > 2 else 0.0
        optimizer.zero_grad()
        backward(model, data(2))
        optimizer.step()
    torch.testing.assert_close(model(data()).detach(), old, rtol=1e-9, atol=1e-9)


def test_schedulers_and_checkpoints_see_the_optimizer_they_know() -> None:
    model = network()
    shield = Shield(model).remember(data())
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    backward(model, data(2))
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    fresh = torch.optim.AdamW(model.parameters())
    fresh.load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_increment_decays_towards_the_last_task(optimizer: str) -> None:
    """λ pulls back to where the last task left the weights, whatever else the step does."""
    model = network()
    shield = Shield(model, 1.0, increment_decay=2.0)
    kinds: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0),
    }
    guarded = shield.guard(kinds[optimizer](model.parameters()))
    shield.remember(data())
    anchor = block(model[0])
    with torch.no_grad():
        model[0].weight += 1.0
    start = block(model[0])
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.warns(UnprotectedWarning, match="moved within claimed space"):  # by this test
        guarded.step()  # no gradient: only the decay acts, by 1 - η 2 λ = 0.6
    torch.testing.assert_close(block(model[0]) - anchor, 0.6 * (start - anchor))


def test_claimed_parts_of_half_precision_are_computed_in_float32() -> None:
    model = network().bfloat16()
    shield = Shield(model, 1e2, hard=True, rows=None).remember(data().bfloat16())
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.05))
    start = block(model[0]).double()
    (model(data(2).bfloat16()) - 1).square().mean().backward()
    free = torch.eye(11).double() - claimed(shield, "0")
    ideal = start - 0.05 * gradient(model[0]).double() @ free
    optimizer.step()
    found = block(model[0]).double()
    moved = 0.05 * gradient(model[0]).double()  # the optimizer rounds its own step, too
    rounding = 2**-8 * (start.norm(dim=1) + moved.norm(dim=1))[:, None]
    assert not torch.equal(found, start)
    assert bool(((found - ideal).abs() <= rounding + 1e-9).all())


def test_the_increment_decays_at_the_rate_of_a_loaded_optimizer() -> None:
    model = network()
    shield = Shield(model, 1.0, increment_decay=2.0)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1))
    shield.remember(data())
    backward(model, data(2))
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())  # puts new groups in place
    optimizer.param_groups[0]["lr"] = 0.0
    before = block(model[0])
    optimizer.step()
    torch.testing.assert_close(block(model[0]), before, rtol=0, atol=1e-14)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_task_may_be_remembered_in_any_mode(mode: Any) -> None:
    model = network()
    shield = Shield(model, 1e4, hard=True)
    with mode():
        optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.1))
        shield.remember(data())
    before = model(data()).detach()
    for _ in range(3):
        backward(model, data(2))
        optimizer.step()
    torch.testing.assert_close(model(data()), before, rtol=0, atol=1e-10)
