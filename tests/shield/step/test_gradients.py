"""The optimizer is given projected copies of the gradients; the user's own are back afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield
from helpers import normal
from shield.step.common import blocks, gradients, root

# --- sparse gradients ------------------------------------------------------------------------

SPARSE: dict[str, Callable[..., Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "sparse adam": lambda p: torch.optim.SparseAdam(p, lr=0.1),
}
TOKENS = torch.tensor([1, 2, 2, 5, 7])


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of torch.optim.Adagrad
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_gradients_stay_sparse(name: str) -> None:
    """The law holds token by token; those that had no gradient stay."""
    torch.manual_seed(0)
    words = nn.Embedding(9, 3, sparse=True).double()
    twin = copy.deepcopy(words)
    shield = Shield(words, 0.8, warn_at_quota=1.0).remember(torch.tensor([[0, 1, 2, 2]]))
    optimizer, other = (
        shield.guard(SPARSE[name](words.parameters())),
        SPARSE[name](twin.parameters()),
    )
    half = (1 - shield.conceptors()["Embedding"].matrix()[:, 0]).sqrt()
    assert sorted({round(float(v), 6) for v in half}) == [round(1.64**-0.5, 6), 1.0]
    start = words.weight.detach().clone()
    for one in (words, twin):
        one(TOKENS).square().sum().backward()
    held, free = words.weight.grad, twin.weight.grad
    assert held is not None
    assert free is not None
    values = held.to_dense()
    twin.weight.grad = (half * free.to_dense()).to_sparse(1)
    optimizer.step()
    other.step()
    wanted = start + half * (twin.weight.detach() - start)
    torch.testing.assert_close(words.weight.detach(), wanted, rtol=0, atol=1e-12)
    assert words.weight.grad is held
    assert torch.equal(held.to_dense(), values)
    moved = (words.weight.detach() != start).any(1)
    assert moved.nonzero().flatten().tolist() == [1, 2, 5, 7]


def test_between_sees_sparse_gradients_as_they_were_made() -> None:
    words = nn.Embedding(9, 3, sparse=True).double()
    shield = Shield(words, 1e4, hard=True, warn_at_quota=1.0).remember(torch.tensor([[0, 1, 2]]))
    seen: list[Tensor] = []
    optimizer = torch.optim.SGD(words.parameters(), lr=0.1)
    shield.guard(optimizer, between=lambda: seen.append(words.weight.grad))  # type: ignore[arg-type]
    words(TOKENS).square().sum().backward()
    optimizer.step()
    (given,) = seen
    assert given.is_sparse
    rows = given.coalesce()
    assert rows.indices().flatten().tolist() == [1, 2, 5, 7]
    assert not rows.values()[:2].any()
    assert bool((rows.values()[2:] != 0).all())


# --- what the optimizer is given -------------------------------------------------------------


def linear(aperture: float = 2.0, **options: Any) -> tuple[nn.Linear, Shield]:
    torch.manual_seed(0)
    layer = nn.Linear(6, 4).double()
    x = normal(0, 20, 3) @ normal(1, 3, 6)
    return layer, Shield(layer, aperture, warn_at_quota=1.0, **options).remember(x)


def backward(layer: nn.Module, seed: int = 2) -> None:
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
    backward(layer)
    raw = gradients(layer)["Linear"]
    optimizer.step()
    half = root(shield.conceptors()["Linear"].matrix())
    wanted = raw @ half if momentum else raw @ half @ half
    torch.testing.assert_close(seen, [wanted], rtol=0, atol=1e-12)
    assert torch.equal(gradients(layer)["Linear"], raw)
    done = "gradients and steps projected" if momentum else "gradients projected"
    assert [row.done for row in shield.explain()] == [done]


def test_looking_at_gradients_changes_no_step() -> None:
    finals = []
    for between in (None, lambda: None):
        layer, shield = linear()
        made = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        optimizer = shield.guard(made, between=between)
        for seed in range(5):
            optimizer.zero_grad()
            backward(layer, seed)
            optimizer.step()
        finals.append(blocks(layer)["Linear"])
    torch.testing.assert_close(*finals, rtol=0, atol=1e-12)


def test_an_optimizer_guarded_already_goes_on_with_the_new_between() -> None:
    layer, shield = linear()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    calls: list[str] = []
    given: list[Tensor] = []

    def look() -> None:
        calls.append("second")
        given.append(gradients(layer)["Linear"])

    def step() -> Tensor:
        optimizer.zero_grad()
        backward(layer)
        optimizer.step()
        return gradients(layer)["Linear"]

    shield.guard(optimizer)
    step()
    shield.guard(optimizer, between=lambda: calls.append("first"))
    step()
    shield.guard(optimizer, between=look)
    raw = step()
    shield.guard(optimizer)  # keeps it
    step()
    assert calls == ["first", "second", "second"]
    half = root(shield.conceptors()["Linear"].matrix())
    torch.testing.assert_close(given[0], raw @ half, rtol=0, atol=1e-12)


def test_gradients_may_be_changed_in_between() -> None:
    """As by clipping what the optimizer is going to see."""
    layer, shield = linear(1e4, hard=True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    norms: list[Tensor] = []

    def clip() -> None:
        norms.append(nn.utils.clip_grad_norm_(layer.parameters(), 1e-3))

    shield.guard(optimizer, between=clip)
    start = blocks(layer)["Linear"]
    backward(layer)
    raw = gradients(layer)["Linear"]
    optimizer.step()
    free = torch.eye(7).double() - shield.conceptors()["Linear"].matrix()
    torch.testing.assert_close(norms, [(raw @ free).norm()])
    moved = blocks(layer)["Linear"] - start
    assert float(moved.norm()) == pytest.approx(1e-4, rel=1e-2)
    assert torch.equal(gradients(layer)["Linear"], raw)


def test_between_is_called_before_anything_is_claimed_and_in_closures() -> None:
    layer = nn.Linear(6, 4).double()
    shield, calls = Shield(layer), []
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=3)
    shield.guard(optimizer, between=lambda: calls.append(1))

    def closure() -> float:
        optimizer.zero_grad()
        backward(layer)
        return 1.0

    optimizer.step(closure)
    assert len(calls) > 1


def test_gradients_put_in_place_within_a_step_are_kept() -> None:
    layer, shield = linear()
    others = [torch.ones_like(p) for p in layer.parameters()]
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)

    def replace() -> None:
        for parameter, other in zip(layer.parameters(), others):
            parameter.grad = other

    shield.guard(optimizer, between=replace)
    backward(layer)
    optimizer.step()
    assert all(p.grad is other for p, other in zip(layer.parameters(), others))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_layers_without_gradients_stay(momentum: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4)).double()
    shield = Shield(model, 2.0, warn_at_quota=1.0).remember(normal(0, 20, 6))
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum))
    before = blocks(model)
    model[1](normal(1, 5, 6)).square().sum().backward()
    optimizer.step()
    assert torch.equal(blocks(model)["0"], before["0"])
    assert not torch.equal(blocks(model)["1"], before["1"])
    assert model[0].weight.grad is None


# --- steps that fail -------------------------------------------------------------------------


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
            backward(layer, 7)
            fail(optimizer)
            optimizer.zero_grad(set_to_none=zero)
        backward(layer, 8)
        if fails and zero is None:
            fail(optimizer)
        optimizer.step()
        finals.append(blocks(layer)["Linear"])
        afterwards.append(gradients(layer)["Linear"])
    assert torch.equal(*finals)
    assert torch.equal(*afterwards)


def test_a_failed_between_leaves_the_users_gradients_to_the_next_step() -> None:
    layer, shield = linear()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)

    def spoil() -> None:
        for parameter in layer.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        raise RuntimeError("out of luck")

    shield.guard(optimizer, between=spoil)
    backward(layer)
    raw = gradients(layer)["Linear"]
    with pytest.raises(RuntimeError, match="out of luck"):
        optimizer.step()
    shield.guard(optimizer, between=lambda: None)
    optimizer.step()
    assert torch.equal(gradients(layer)["Linear"], raw)


def test_a_shield_that_is_detached_after_a_failed_step_gives_back() -> None:
    layer, shield = linear()
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters()))
    backward(layer)
    raw = gradients(layer)["Linear"]
    fail(optimizer)
    shield.detach()
    assert torch.equal(gradients(layer)["Linear"], raw)
