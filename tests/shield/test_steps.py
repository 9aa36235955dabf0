"""Steps are those of the closed form, and the user's gradients and weights stay their own."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from conceptors.shield import ShieldFullWarning
from helpers import normal
from shield.common import (
    backward,
    blocks,
    gradients,
    mixed,
    mlp,
    root,
    samples,
    set_gradients,
    train,
)


def train_mixed(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> None:
    for step in range(count):
        optimizer.zero_grad()
        backward(model, step)
        optimizer.step()


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_one_step_is_the_closed_form(channels_last: bool, hard: bool) -> None:
    """W + ΔV F^½, with ΔV what the optimizer alone makes of G F^½."""
    model, twin = mixed(channels_last), mixed(channels_last)
    shield = Shield(model, 3.0, hard=hard).remember(torch.arange(5))
    halves = {name: root(claimed.matrix()) for name, claimed in shield.conceptors().items()}
    make: Any = torch.optim.AdamW
    optimizer, free_optimizer = make(model.parameters(), lr=0.01), make(twin.parameters(), lr=0.01)
    before = blocks(model)
    train_mixed(model, shield.guard(optimizer), 1)
    backward(twin)
    set_gradients(twin, {name: g @ halves[name] for name, g in gradients(twin).items()})
    free_optimizer.step()
    for name, raw in blocks(twin).items():
        wanted = before[name] + (raw - before[name]) @ halves[name]
        torch.testing.assert_close(blocks(model)[name], wanted, rtol=0, atol=1e-12)
    assert {row.done for row in shield.explain()} == {"gradients and steps projected"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_algorithm_2(momentum: float) -> None:
    """Its first step is -η G F, whether steps are left alone or momentum needs them projected."""
    model = mixed()
    shield = Shield(model, 3.0).remember(torch.arange(5))
    make: Any = torch.optim.SGD
    optimizer = shield.guard(make(model.parameters(), lr=0.01, momentum=momentum))
    before = blocks(model)
    train_mixed(model, optimizer, 1)
    for name, claimed in shield.conceptors().items():
        free = torch.eye(claimed.dim).double() - claimed.matrix()
        wanted = before[name] - 0.01 * gradients(model)[name] @ free
        torch.testing.assert_close(blocks(model)[name], wanted, rtol=0, atol=1e-12)
    done = "steps projected" if momentum else "gradients projected"
    assert {row.done for row in shield.explain()} == {done}


@pytest.mark.filterwarnings("ignore:hardly any:conceptors.shield.ShieldFullWarning")
def test_many_steps_stay_in_the_free_space() -> None:
    model = mixed()
    shield = Shield(model, 1e4, hard=True, rank=0.3).remember(torch.arange(2))
    before = blocks(model)
    train_mixed(model, shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01)), 200)
    for name, conceptor in shield.conceptors().items():
        leaked = (blocks(model)[name] - before[name]) @ conceptor.matrix()
        assert leaked.abs().max() < 1e-12, name


def linear(aperture: float = 2.0, **options: Any) -> tuple[nn.Linear, Shield]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).double()
    x = normal(0, 20, 3) @ normal(1, 3, 6)
    return layer, Shield(layer, aperture, **options).remember(x)


def push(layer: nn.Module, seed: int = 2) -> None:
    (layer(normal(seed, 9, 6)) - 1).square().sum().backward()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_between_sees_what_the_optimizer_is_given(momentum: float) -> None:
    """G F where the step is left alone, else G F^½; after the step `.grad` is G again.

    SGD with momentum is given G itself where nobody looks.
    """
    layer, shield = linear()
    seen: list[Tensor] = []
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=momentum)
    shield.guard(optimizer, between=lambda: seen.append(gradients(layer)["Linear"]))
    push(layer)
    raw = gradients(layer)["Linear"]
    optimizer.step()
    half = root(shield.conceptors()["Linear"].matrix())
    wanted = raw @ half if momentum else raw @ half @ half
    torch.testing.assert_close(seen, [wanted], rtol=0, atol=1e-12)
    assert torch.equal(gradients(layer)["Linear"], raw)
    done = "gradients and steps projected" if momentum else "gradients projected"
    assert [row.done for row in shield.explain()] == [done]


def test_gradients_may_be_changed_in_between() -> None:
    """As by clipping what the optimizer is going to see."""
    layer, shield = linear(1e4, hard=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    norms: list[Tensor] = []

    def clip() -> None:
        norms.append(nn.utils.clip_grad_norm_(layer.parameters(), 1e-3))

    shield.guard(optimizer, between=clip)
    start = blocks(layer)["Linear"]
    push(layer)
    raw = gradients(layer)["Linear"]
    optimizer.step()
    free = torch.eye(7).double() - shield.conceptors()["Linear"].matrix()
    torch.testing.assert_close(norms, [(raw @ free).norm()])
    moved = blocks(layer)["Linear"] - start
    assert float(moved.norm()) == pytest.approx(1e-4, rel=1e-2)
    assert torch.equal(gradients(layer)["Linear"], raw)


def fail(optimizer: torch.optim.Optimizer) -> None:
    """A step that raises when the optimizer has its gradients."""

    def raises(*_: object) -> None:
        raise RuntimeError("out of luck")

    hook = optimizer.register_step_pre_hook(raises)
    with pytest.raises(RuntimeError, match="out of luck"):
        optimizer.step()
    hook.remove()


@pytest.mark.parametrize("zero", [True, False, None], ids=["to none", "to zero", "not at all"])
@pytest.mark.parametrize("clips", [False, True])
def test_after_a_failed_step_the_next_has_the_users_gradients(
    zero: bool | None, clips: bool
) -> None:
    """Whether they have zeroed our copies, put others in place, or try the same again."""
    finals, afterwards = [], []
    for fails in (True, False):
        layer, shield = linear()
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)

        def clip(layer: nn.Module = layer) -> None:
            nn.utils.clip_grad_norm_(layer.parameters(), 1e-3)

        shield.guard(optimizer, between=clip if clips else None)
        if fails and zero is not None:
            push(layer, 7)
            fail(optimizer)
            optimizer.zero_grad(set_to_none=zero)
        push(layer, 8)
        if fails and zero is None:
            fail(optimizer)
        optimizer.step()
        finals.append(blocks(layer)["Linear"])
        afterwards.append(gradients(layer)["Linear"])
    assert torch.equal(*finals)
    assert torch.equal(*afterwards)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_share_of_a_first_step_is_that_of_the_definition(optimizer: str) -> None:
    made: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    }
    model = mixed()
    shield = Shield(model, 3.0).remember(torch.arange(5))
    guarded = shield.guard(made[optimizer](model.parameters()))
    assert all(row.passing is None for row in shield.explain())
    backward(model)
    G = gradients(model)
    guarded.step()
    for row in shield.explain():
        A = shield.conceptors()[row.layer].matrix()
        free = torch.eye(A.shape[-1]).double() - A
        share = float((G[row.layer] @ free * G[row.layer]).sum() / G[row.layer].square().sum())
        assert row.passing == pytest.approx(share, abs=1e-12), row.layer
        assert 0 < share < 1


def test_a_task_that_hardly_passes_is_told_once() -> None:
    layer = nn.Linear(8, 5).double()
    shield = Shield(layer, 1e3).remember(normal(0, 20, 8))
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters(), lr=1e-4))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for seed in range(300):
            optimizer.zero_grad()
            layer(normal(seed, 6, 8)).square().sum().backward()
            optimizer.step()
    (message,) = [str(w.message) for w in said if w.category is ShieldFullWarning]
    assert "Linear (0.0%)" in message


# --- settings that change ---------------------------------------------------------------------


def test_parameter_groups_and_decay_that_come_later_are_noticed() -> None:
    model = mlp(width=64)
    shield = Shield(model, 1e4, hard=True).remember(samples())
    optimizer = shield.guard(torch.optim.SGD(model[2].parameters(), lr=0.05))
    old = model(samples()).detach()
    train(model, optimizer, samples(2), steps=2)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.02})
    train(model, optimizer, samples(2), steps=2)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.5
    train(model, optimizer, samples(2), steps=2)
    torch.testing.assert_close(model(samples()).detach(), old, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_the_increment_decays_towards_the_last_task(make: Any) -> None:
    """λ pulls back to where the last task left the weights, whatever else the step does."""
    layer = nn.Linear(6, 4).double()
    shield = Shield(layer, 1.0, increment_decay=2.0)
    optimizer = shield.guard(make(layer.parameters(), lr=0.1, weight_decay=0.0))
    shield.remember(normal(0, 20, 6))
    anchor = blocks(layer)["Linear"]
    with torch.no_grad():
        layer.weight += 1.0
    start = blocks(layer)["Linear"]
    for p in layer.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.warns(UnprotectedWarning, match="moved in protected directions"):  # by this test
        optimizer.step()  # no gradient: only the decay acts, by 1 - η 2 λ = 0.6
    torch.testing.assert_close(blocks(layer)["Linear"] - anchor, 0.6 * (start - anchor))
