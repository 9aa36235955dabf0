"""Steps follow the closed form, and the user's gradients and settings stay their own."""

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from conceptors import Shield, UnprotectedWarning
from conceptors.shield import ShieldFullWarning
from helpers import drift, normal
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

OPTIMIZERS: dict[str, tuple[Any, str]] = {
    "adamw": (partial(AdamW, lr=0.01), "gradients and steps projected"),
    "sgd": (partial(SGD, lr=0.01), "gradients projected"),
    "momentum": (partial(SGD, lr=0.01, momentum=0.9), "gradients and steps projected"),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_step_is_the_closed_form(name: str, channels_last: bool, hard: bool) -> None:
    """W + ΔV F^½, with ΔV what the optimizer alone makes of G F^½; and |G F^½|² / |G|² passes."""
    make, done = OPTIMIZERS[name]
    model, twin = mixed(channels_last), mixed(channels_last)
    shield = Shield(model, 3.0, hard=hard).remember(torch.arange(5))
    halves = {layer: root(claimed.matrix()) for layer, claimed in shield.conceptors().items()}
    before = blocks(model)
    optimizer = shield.guard(make(model.parameters()))
    assert all(row.passing is None for row in shield.explain())
    backward(model)
    optimizer.step()
    alone = make(twin.parameters())
    backward(twin)
    raw = gradients(twin)
    set_gradients(twin, {layer: g @ halves[layer] for layer, g in raw.items()})
    alone.step()
    for layer, weights in blocks(twin).items():
        expected = before[layer] + (weights - before[layer]) @ halves[layer]
        torch.testing.assert_close(blocks(model)[layer], expected, rtol=0, atol=1e-12)
    for row in shield.explain():
        G = raw[row.layer]
        share = float((G @ halves[row.layer]).square().sum() / G.square().sum())
        assert row.done == done
        assert row.passing == pytest.approx(share, abs=1e-12), row.layer


def linear(aperture: float = 2.0, **options: Any) -> tuple[nn.Linear, Shield]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).double()
    x = normal(0, 20, 3) @ normal(1, 3, 6)
    return layer, Shield(layer, aperture, **options).remember(x)


def push(layer: nn.Module, seed: int = 2) -> Tensor:
    """The gradient that a batch has left."""
    (layer(normal(seed, 9, 6)) - 1).square().sum().backward()
    return gradients(layer)["Linear"]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_may_be_projected_early_and_clipped(momentum: float) -> None:
    """G F where the step is left alone, else G F^½; the step does not project it again."""
    layer, shield = linear()
    optimizer = shield.guard(SGD(layer.parameters(), lr=0.1, momentum=momentum))
    half = root(shield.conceptors()["Linear"].matrix())
    for seed in (2, 3):
        start = blocks(layer)["Linear"]
        optimizer.zero_grad()
        optimizer.state.clear()
        raw = push(layer, seed)
        shield.project_(optimizer)
        expected = raw @ half if momentum else raw @ half @ half
        torch.testing.assert_close(gradients(layer)["Linear"], expected, rtol=0, atol=1e-12)
        nn.utils.clip_grad_norm_(layer.parameters(), 1e-3)
        clipped = gradients(layer)["Linear"]
        optimizer.step()
        assert torch.equal(gradients(layer)["Linear"], clipped)
        step = 0.1 * clipped @ (half if momentum else torch.eye(7).double())
        torch.testing.assert_close(start - blocks(layer)["Linear"], step, rtol=0, atol=1e-12)


def test_only_gradients_that_were_projected_early_are_left_alone() -> None:
    """A step that was skipped after `project_`, as for NaN, leaves nothing behind."""
    (layer, shield), (other, reference) = linear(), linear()
    optimizer = shield.guard(SGD(layer.parameters(), lr=0.1))
    alone = reference.guard(SGD(other.parameters(), lr=0.1))
    push(layer, 2)
    shield.project_(optimizer)
    optimizer.zero_grad()
    for model, steps in ((layer, optimizer), (other, alone)):
        push(model, 3)
        steps.step()
    assert torch.equal(blocks(layer)["Linear"], blocks(other)["Linear"])


@pytest.mark.parametrize("hard", [False, True])
def test_gradients_of_another_pass_in_the_same_memory_are_projected(hard: bool) -> None:
    """After a step that was skipped, with `zero_grad(set_to_none=False)`."""
    (layer, shield), (other, reference) = linear(hard=hard), linear(hard=hard)
    optimizer = shield.guard(SGD(layer.parameters(), lr=0.1))
    alone = reference.guard(SGD(other.parameters(), lr=0.1))
    push(layer, 2)
    shield.project_(optimizer)
    optimizer.zero_grad(set_to_none=False)
    push(layer, 3)
    shield.project_(optimizer)
    push(other, 3)
    reference.project_(alone)
    assert torch.equal(gradients(layer)["Linear"], gradients(other)["Linear"])
    shield.project_(optimizer)  # again
    torch.testing.assert_close(gradients(layer)["Linear"], gradients(other)["Linear"])


@pytest.mark.parametrize("then", ["another pass", "clip by value", "remember"])
def test_gradients_that_change_after_an_early_projection_stay_free(then: str) -> None:
    layer = nn.Linear(6, 4).double()
    x = normal(0, 20, 3) @ normal(1, 3, 6)
    shield = Shield(layer, hard=True)
    optimizer = shield.guard(SGD(layer.parameters(), lr=0.1))
    if then != "remember":
        shield.remember(x)
    push(layer, 2)
    shield.project_(optimizer)
    if then == "another pass":
        push(layer, 3)
    elif then == "clip by value":
        nn.utils.clip_grad_value_(layer.parameters(), 1e-2)
    else:
        shield.remember(x)
    before, start = layer(x).detach(), blocks(layer)["Linear"]
    optimizer.step()
    assert drift(layer(x), before) < 1e-9
    assert drift(blocks(layer)["Linear"], start) > 1e-4


def test_gradients_may_have_other_strides_than_their_parameters() -> None:
    model = nn.LayerNorm((4, 5)).double()
    x = normal(0, 6, 4, 5)
    shield = Shield(model, hard=True).remember([x])
    optimizer = shield.guard(SGD(model.parameters(), lr=0.1))
    before = model(x).detach()
    for p in model.parameters():
        p.grad = normal(1, 5, 4).mT
    optimizer.step()
    assert drift(model(x), before) < 1e-9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_ways_to_step_are_the_same(name: str) -> None:
    """With a closure or without; it may project in the middle of a step, as lightning does."""
    finals = []
    for way in ("plain", "by position", "by name", "early"):
        layer, shield = linear()
        optimizer: Any = shield.guard(OPTIMIZERS[name][0](layer.parameters()))

        def closure(layer: nn.Module, shield: Shield, optimizer: Any, early: bool) -> float:
            optimizer.zero_grad()
            norm = float(push(layer).norm())
            if early:
                shield.project_(optimizer)
            return norm

        for _ in range(5):
            call = partial(closure, layer, shield, optimizer, way == "early")
            if way == "plain":
                call()
                optimizer.step()
            elif way == "by name":
                assert isinstance(optimizer.step(closure=call), float)
            else:
                optimizer.step(call)
        finals.append(blocks(layer)["Linear"])
    assert all(torch.equal(final, finals[0]) for final in finals)


@pytest.mark.parametrize(("is_learned", "early"), [(False, False), (False, True), (True, False)])
def test_a_task_that_is_not_learned_is_reported_once(is_learned: bool, early: bool) -> None:
    """Though few of its gradients are applied in both cases."""
    layer = nn.Linear(8, 5).double()
    shield = Shield(layer, 4.0 if is_learned else 1e3).remember(normal(0, 20, 8))
    optimizer = shield.guard(AdamW(layer.parameters(), lr=0.1 if is_learned else 1e-4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(300):
            optimizer.zero_grad()
            layer(normal(seed, 60, 8)).square().mean().backward()
            shield.project_(optimizer) if early else None
            optimizer.step()
    passing = shield.explain()[0].passing
    assert passing is not None
    assert passing < 0.1
    messages = [str(w.message) for w in caught if w.category is ShieldFullWarning]
    assert [("Linear (0.0%)" in message) for message in messages] == ([] if is_learned else [True])


def test_parameter_groups_and_decay_that_come_later_are_noticed() -> None:
    model = mlp(width=64)
    shield = Shield(model, 1e4, hard=True).remember(samples())
    optimizer = shield.guard(SGD(model[2].parameters(), lr=0.05))
    before = model(samples()).detach()
    train(model, optimizer, samples(2), steps=2)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.02})
    train(model, optimizer, samples(2), steps=2)
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.5
    train(model, optimizer, samples(2), steps=2)
    assert drift(model(samples()), before) < 1e-9


@pytest.mark.parametrize("make", [SGD, AdamW])
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


@pytest.mark.parametrize("make", [SGD, AdamW])
@pytest.mark.parametrize("how", ["another optimizer", "a frozen bias"])
def test_the_decay_of_a_part_of_a_layer_stays_in_the_free_space(make: Any, how: str) -> None:
    """Weight and bias have moved together, so only together they may go back."""
    layer = nn.Linear(6, 4).double()
    factors = normal(0, 20, 3)
    factors[:, 0] = 1  # so the inputs do not tell the bias from a weight
    x = factors @ normal(1, 3, 6)
    shield = Shield(layer, hard=True, increment_decay=0.5).remember(x)
    optimizer = shield.guard(make(layer.parameters(), lr=0.1))
    before, bias = layer(x).detach(), layer.bias.detach().clone()
    train(layer, optimizer, normal(2, 9, 6), steps=5)
    assert drift(layer.bias, bias) > 1e-3
    if how == "a frozen bias":
        layer.bias.requires_grad_(False)
    else:
        optimizer = shield.guard(make([layer.weight], lr=0.1))
    train(layer, optimizer, normal(2, 9, 6), steps=5)
    assert drift(layer(x), before) < 1e-9


def pushed(shield: Shield, model: nn.Module, weight: Tensor, optimizer: Any) -> float:
    """Add 1 to a weight, step without a gradient, and return by how much it decays."""
    start = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.warns(UnprotectedWarning, match="moved in protected directions"):  # by this test
        optimizer.step()
    return 1 - float((weight.detach() - start).mean())


def test_the_increment_decay_follows_the_rate_after_an_optimizer_was_loaded() -> None:
    layer, shield = linear(increment_decay=0.5)
    optimizer = shield.guard(SGD(layer.parameters(), lr=0.1))
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 0.11
    assert pushed(shield, layer, layer.weight, optimizer) == pytest.approx(0.11)


def test_tied_weights_decay_once() -> None:
    words, scores = nn.Embedding(7, 5), nn.Linear(5, 7, bias=False)
    scores.weight = words.weight
    model = nn.Sequential(words, scores).double()
    shield = Shield(model, 3.0, increment_decay=0.5).remember([torch.arange(4)])
    optimizer = shield.guard(SGD(model.parameters(), lr=0.1))
    assert pushed(shield, model, words.weight, optimizer) == pytest.approx(0.1)


def test_a_plain_step_that_was_interrupted_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first parameters have moved, and the others have not."""
    model = mlp()
    x = samples()
    x[:, 0] = 1
    shield = Shield(model, hard=True).remember(x)
    optimizer = shield.guard(SGD(model.parameters(), lr=0.1, foreach=False))
    add_ = Tensor.add_

    def interrupted(self: Tensor, *args: Any, **kwargs: Any) -> None:
        add_(self, *args, **kwargs)
        raise KeyboardInterrupt

    (model(normal(2, 9, 10)) - 1).square().mean().backward()
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "add_", interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    with pytest.warns(UnprotectedWarning, match="moved in protected directions"):
        train(model, optimizer, normal(2, 9, 10), steps=1)


def test_the_pull_stays_stable_where_a_rate_in_a_tensor_grows() -> None:
    """As where it is a number: a warm-up may begin with a tiny rate."""
    finals = []
    for rate in (1e-4, torch.tensor(1e-4, dtype=torch.float64)):
        model = mlp()
        shield = Shield(model).remember(samples())
        optimizer = shield.guard(SGD(model.parameters(), lr=rate))
        for step in range(40):
            now = min(1e-4 * 2**step, 0.2)
            (group,) = optimizer.param_groups
            group["lr"] = rate.fill_(now) if isinstance(rate, Tensor) else now
            train(model, optimizer, normal(1, 60, 10), steps=1)
        finals.append(model[0].weight.detach())
    torch.testing.assert_close(*finals)
