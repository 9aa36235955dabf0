"""Steps are those of the closed form, in every memory layout, step after step."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from conceptors.shield.step import factored
from conceptors.shield.step.choose import choose
from conceptors.shield.step.elementwise import make_small, make_tokens
from conceptors.shield.step.factored import make_factored
from conceptors.shield.step.free_space import FreeSpace
from conceptors.shield.step.memory import both
from shield.step.common import (
    backward,
    blocks,
    gradients,
    mixed,
    root,
    set_blocks,
    set_gradients,
    sites,
    train,
)

# --- one step --------------------------------------------------------------------------------


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_one_step_is_the_closed_form(channels_last: bool, hard: bool) -> None:
    """W + ΔV F^½, with ΔV what the optimizer alone makes of G F^½."""
    model, twin = mixed(channels_last), mixed(channels_last)
    shield = Shield(model, 3.0, hard=hard, warn_at_quota=1.0).remember(torch.arange(5))
    halves = {name: root(claimed.matrix()) for name, claimed in shield.conceptors().items()}
    make: Any = torch.optim.AdamW
    optimizer, free_optimizer = make(model.parameters(), lr=0.01), make(twin.parameters(), lr=0.01)
    before = blocks(model)
    train(model, shield.guard(optimizer), 1)
    backward(twin)
    set_gradients(twin, {name: g @ halves[name] for name, g in gradients(twin).items()})
    free_optimizer.step()
    for name, raw in blocks(twin).items():
        wanted = before[name] + (raw - before[name]) @ halves[name]
        torch.testing.assert_close(blocks(model)[name], wanted, rtol=0, atol=1e-12)
    assert {row.done for row in shield.explain()} == {"gradients and steps projected"}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_algorithm_2(channels_last: bool, momentum: float) -> None:
    """Its first step is -η G F, whether steps are left alone or momentum needs them projected."""
    model = mixed(channels_last)
    shield = Shield(model, 3.0, warn_at_quota=1.0).remember(torch.arange(5))
    make: Any = torch.optim.SGD
    optimizer = shield.guard(make(model.parameters(), lr=0.01, momentum=momentum))
    before = blocks(model)
    train(model, optimizer, 1)
    for name, claimed in shield.conceptors().items():
        free = torch.eye(claimed.dim).double() - claimed.matrix()
        wanted = before[name] - 0.01 * gradients(model)[name] @ free
        torch.testing.assert_close(blocks(model)[name], wanted, rtol=0, atol=1e-12)
    done = "steps projected" if momentum else "gradients projected"
    assert {row.done for row in shield.explain()} == {done}


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_momentum_is_that_of_algorithm_2(nesterov: bool, decay: float) -> None:
    """By hand: W ← W - η 2 λ (W - W_before), V ← μ V + G F, W ← W - η V."""
    model, twin = mixed(), mixed()
    shield = Shield(model, 3.0, increment_decay=decay, warn_at_quota=1.0)
    make: Any = torch.optim.SGD
    optimizer = shield.guard(make(model.parameters(), lr=0.01, momentum=0.9, nesterov=nesterov))
    shield.remember(torch.arange(5))
    weights = blocks(twin)
    before, velocity = blocks(twin), {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in range(6):
        twin.zero_grad()
        backward(twin, step)
        for name, G in gradients(twin).items():
            claimed = shield.conceptors()[name]
            GF = G @ (torch.eye(claimed.dim).double() - claimed.matrix())
            velocity[name] = 0.9 * velocity[name] + GF
            move = GF + 0.9 * velocity[name] if nesterov else velocity[name]
            drawn = weights[name] - 0.02 * decay * (weights[name] - before[name])
            weights[name] = drawn - 0.01 * move
        set_blocks(twin, weights)
    train(model, optimizer, 6)
    assert {row.done for row in shield.explain()} == {"steps projected"}
    for name, wanted in weights.items():
        assert float((wanted - before[name]).norm()) > 1e-3
        torch.testing.assert_close(blocks(model)[name], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels_last", [False, True])
def test_every_kind_of_block_is_in_the_mixed_model(channels_last: bool) -> None:
    """And only transposed weights have no view in place, if memory is in the usual order."""
    model = mixed(channels_last)
    claimed = Shield(model, 3.0, warn_at_quota=1.0).remember(torch.arange(5)).conceptors()
    optimizer = torch.optim.AdamW(model.parameters())
    made, copied = {}, set()
    for name, site in sites(model).items():
        active, free = site.active(), FreeSpace(claimed[name], torch.float64)
        made[name] = choose(site, active, free, optimizer, optimizer.param_groups, False).make
        weights, _ = both(site, active, torch.zeros_like)
        if weights.is_copy:
            copied.add(name)
    assert made.pop("words") is make_tokens
    assert (made.pop("norm"), made.pop("end")) == (make_small, make_small)
    assert set(made.values()) == {make_factored}
    assert copied == (set() if channels_last else {"back"})


# --- many steps ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:hardly anything:conceptors.ShieldFullWarning")
@pytest.mark.parametrize("channels_last", [False, True])
def test_many_steps_stay_in_the_free_space(channels_last: bool) -> None:
    model = mixed(channels_last)
    shield = Shield(model, 1e4, hard=True, warn_at_quota=1.0, rank=0.3).remember(torch.arange(2))
    before = blocks(model)
    train(model, shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01)), 200)
    for name, conceptor in shield.conceptors().items():
        leaked = (blocks(model)[name] - before[name]) @ conceptor.matrix()
        assert leaked.abs().max() < 1e-12, name


def test_rounding_does_not_add_up() -> None:
    """Weights in bfloat16: after a thousand steps the leak is that of one rounding."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 32).bfloat16()
    rows = torch.randn(40, 6) @ torch.randn(6, 64)
    shield = Shield(layer, 1e3, hard=True, rank=8, rows=None).remember(rows.bfloat16())
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.0))
    U = shield.conceptors()["Linear"][0].spectrum[0][:, :8].float()

    def along() -> Tensor:
        weights = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().float()
        return weights @ U

    start = along()
    leaks = []
    for step in range(1000):
        optimizer.zero_grad()
        (layer(torch.randn(16, 64).bfloat16()) - 1).square().mean().backward()
        optimizer.step()
        if step % 100 == 99:
            leaks.append(float((along() - start).abs().max()))
    size = float(layer.weight.detach().abs().max())
    assert max(leaks) < 8 * 2**-8 * size * 64**0.5 / 8
    assert leaks[-1] < 3 * leaks[0] + 1e-3


# --- weights that others change --------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weights_set_by_hand_between_steps_are_kept(momentum: float) -> None:
    model = mixed()
    shield = Shield(model, 1e4, hard=True, warn_at_quota=1.0, rank=0.3).remember(torch.arange(3))
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.0, momentum=momentum))
    train(model, optimizer, 2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    wanted = [p.detach().clone() for p in model.parameters()]
    with pytest.warns(UnprotectedWarning, match="moved within claimed space"):
        train(model, optimizer, 2)
    for parameter, value in zip(model.parameters(), wanted):
        torch.testing.assert_close(parameter, value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_put_in_place_of_others_are_kept(dtype: torch.dtype, momentum: float) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 30).to(dtype)
    shield = Shield(layer, 30.0, hard=True, warn_at_quota=1.0)
    shield.remember((torch.randn(64, 5) @ torch.randn(5, 40)).to(dtype))
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.0, momentum=momentum))
    expected: Any = pytest.warns(UnprotectedWarning, match="Linear")
    for _ in range(2):
        wanted = torch.randn(30, 40).to(dtype)
        layer.weight.data = wanted.clone()
        layer(torch.randn(8, 40).to(dtype)).sum().backward()
        with expected:  # said once
            optimizer.step()
        expected = nullcontext()
        torch.testing.assert_close(layer.weight.detach(), wanted, rtol=0, atol=1e-5)


# --- forms of blocks -------------------------------------------------------------------------


def test_groups_of_half_precision_are_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where wide layers of bfloat16 have a way of their own."""
    monkeypatch.setattr(factored, "pays_to_split", lambda *_: True)
    monkeypatch.setattr(factored, "widens", lambda _: True)
    torch.manual_seed(0)
    layer = nn.Conv1d(24, 8, 3, groups=2, bias=False).bfloat16()
    shield = Shield(layer, 1e4, hard=True, rank=6, warn_at_quota=1.0)
    shield.remember(torch.randn(4, 24, 3).bfloat16())
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.1))
    before = layer.weight.detach().clone()
    layer(torch.randn(8, 24, 9).bfloat16()).square().mean().backward()
    optimizer.step()
    change = (layer.weight.detach() - before).float().unflatten(0, (2, 4)).flatten(2)
    claimed = shield.conceptors()["Conv1d"].matrix().float()
    assert change.norm() > 0.01
    assert (change @ claimed).norm() < 0.05 * change.norm()


class TiedText(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 12)
        self.head = nn.Linear(12, 30, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(torch.tanh(self.words(tokens)))
        return found


@pytest.mark.parametrize("known", [4, 25], ids=["few tokens", "most tokens"])
def test_a_weight_that_is_embedding_and_matrix(known: int) -> None:
    """Its rows have a number D^½ each, its columns a matrix F^½: W + D^½ ΔV F^½."""
    torch.manual_seed(0)
    model = TiedText().double()
    twin = copy.deepcopy(model)
    shield = Shield(model, 2.0, rank=4, warn_at_quota=1.0).remember(torch.arange(known))
    tokens = torch.randint(30, (16,), generator=torch.Generator().manual_seed(1))
    make: Any = torch.optim.AdamW
    optimizer, other = shield.guard(make(model.parameters())), make(twin.parameters())
    before = model.words.weight.detach().clone()
    rows = (1 - shield.conceptors()["words"].matrix()[:, 0]).sqrt()
    columns = root(shield.conceptors()["head"].top_k(4)[0].matrix())
    for one in (model, twin):
        one(tokens).square().sum().backward()
    assert twin.words.weight.grad is not None
    twin.words.weight.grad.copy_(rows * twin.words.weight.grad @ columns)
    optimizer.step()
    other.step()
    wanted = before + rows * (twin.words.weight.detach() - before) @ columns
    torch.testing.assert_close(model.words.weight.detach(), wanted, rtol=0, atol=1e-12)


def test_a_tied_weight_keeps_what_it_does() -> None:
    torch.manual_seed(0)
    model = TiedText().double()
    shield = Shield(model, 1e4, hard=True, warn_at_quota=1.0).remember(torch.arange(4))
    before = model(torch.arange(4)).detach()
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01))
    for _ in range(50):
        optimizer.zero_grad()
        (model(torch.arange(2, 20)) - 1).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(model(torch.arange(4)), before, rtol=0, atol=1e-11)
    assert {row.done for row in shield.explain()} == {"gradients and steps projected"}
