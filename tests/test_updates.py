"""Corrections in place: the same as the closed form, in every memory layout, step after step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Conceptor, Shield, updates
from conceptors.precision import exactly, halves, rounded, sharp_product, split, thirds
from conceptors.projection import Projector
from conceptors.sites import scan
from conceptors.stacks import stacked
from conceptors.updates import (
    Dense,
    Factored,
    Gathered,
    Pairs,
    Scaled,
    Tied,
    in_place,
    make_update,
)


class Mixed(nn.Module):
    """Every kind of update in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.spread = nn.Linear(6, 3 * 8 * 8)
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 8, 3, groups=4)
        self.back = nn.ConvTranspose2d(8, 4, 2)
        self.end = nn.LayerNorm(4)
        self.head = nn.Linear(4, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.tanh(self.spread(self.words(tokens))).unflatten(-1, (3, 8, 8))
        x = self.back(torch.relu(self.grouped(torch.relu(self.norm(self.conv(x))))))
        found: Tensor = self.head(self.end(x.mean((-1, -2))))
        return found


def model(channels_last: bool = False) -> Mixed:
    torch.manual_seed(0)
    made = Mixed().double()
    return made.to(memory_format=torch.channels_last) if channels_last else made  # type: ignore[call-overload]


def train(m: nn.Module, optimizer: torch.optim.Optimizer, count: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        optimizer.zero_grad()
        m(torch.randint(11, (16,), generator=generator)).square().sum().backward()
        optimizer.step()


def kinds(shield: Shield) -> dict[str, type]:
    return {g.name: type(g.update) for g in shield._guards[0]._plan.guarded}


def blocks(shield: Shield) -> dict[str, Tensor]:
    return {name: s.matrix(s.parameters).clone() for name, s in shield._scan.sites.items()}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_one_step_is_the_closed_form(channels_last: bool, hard: bool) -> None:
    m, bare = model(channels_last), model(channels_last)
    shield = Shield(m, 3.0, hard=hard, warn_at_quota=1.0)
    tokens = torch.arange(5)
    shield.remember(tokens)
    for one in (m, bare):
        one.eval()  # BatchNorm of the shielded model is held
    before = blocks(shield)
    make: Any = torch.optim.AdamW
    train(m, shield.guard(make(m.parameters(), lr=0.01)), 1)
    train(bare, make(bare.parameters(), lr=0.01), 1)
    raw = blocks(Shield(bare))
    for name, conceptor in shield.conceptors().items():
        free = torch.eye(conceptor.dim).double() - conceptor.matrix()
        wanted = before[name] + (raw[name] - before[name]) @ free
        torch.testing.assert_close(blocks(shield)[name], wanted, rtol=0, atol=1e-13)
    found = kinds(shield)
    assert found["words"] is Scaled
    assert found["norm"] is Pairs
    assert found["end"] is Pairs
    assert channels_last or found["back"] is Gathered
    assert {found["conv"], found["spread"]} <= {Factored, Dense}


@pytest.mark.parametrize("channels_last", [False, True])
def test_many_steps_stay_in_the_free_space(channels_last: bool) -> None:
    m = model(channels_last)
    shield = Shield(m, 1e4, hard=True, warn_at_quota=1.0, rank=0.3)
    tokens = torch.arange(2)
    shield.remember(tokens)
    before = blocks(shield)
    m.eval()
    optimizer = shield.guard(torch.optim.AdamW(m.parameters(), lr=0.01))
    train(m, optimizer, 200)
    assert Factored in kinds(shield).values()
    for name, conceptor in shield.conceptors().items():
        leaked = (blocks(shield)[name] - before[name]) @ conceptor.matrix()
        assert leaked.abs().max() < 1e-12, name


def test_rounding_does_not_add_up() -> None:
    """Weights in bfloat16: after a thousand steps the leak is that of one rounding."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 32).bfloat16()
    rows = torch.randn(40, 6) @ torch.randn(6, 64)
    shield = Shield(layer, 1e3, hard=True, rank=8, rows=None).remember(rows.bfloat16())
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters(), lr=1e-3, weight_decay=0.0))
    U = shield.conceptors()["Linear"][0].spectrum[0][:, :8].float()
    assert isinstance(shield._guards[0]._plan.guarded[0].update, Factored)

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


def test_weights_set_by_hand_between_steps_are_kept() -> None:
    m = model()
    shield = Shield(m, 1e4, hard=True, warn_at_quota=1.0, rank=0.3).remember(torch.arange(3))
    optimizer = shield.guard(torch.optim.SGD(m.parameters(), lr=0.0))
    train(m, optimizer, 2)
    with torch.no_grad():
        for parameter in m.parameters():
            parameter.add_(0.1)
    wanted = [p.detach().clone() for p in m.parameters()]
    train(m, optimizer, 2)
    for parameter, value in zip(m.parameters(), wanted):
        torch.testing.assert_close(parameter, value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_put_in_place_of_others_are_kept(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(40, 30).to(dtype)
    shield = Shield(layer, 30.0, hard=True, warn_at_quota=1.0)
    shield.remember((torch.randn(64, 5) @ torch.randn(5, 40)).to(dtype))
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.0))
    for _ in range(2):
        wanted = torch.randn(30, 40).to(dtype)
        layer.weight.data = wanted.clone()
        layer(torch.randn(8, 40).to(dtype)).sum().backward()
        optimizer.step()
        torch.testing.assert_close(layer.weight.detach(), wanted, rtol=0, atol=1e-5)


def test_groups_of_half_precision_are_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where wide layers of bfloat16 have a way of their own."""
    monkeypatch.setattr(updates, "pays_to_split", lambda *_: True)
    monkeypatch.setattr(updates, "widens", lambda _: True)
    torch.manual_seed(0)
    layer = nn.Conv1d(24, 8, 3, groups=2, bias=False).bfloat16()
    shield = Shield(layer, 1e4, hard=True, rank=6, warn_at_quota=1.0)
    shield.remember(torch.randn(4, 24, 3).bfloat16())
    optimizer = shield.guard(torch.optim.SGD(layer.parameters(), lr=0.1))
    before = layer.weight.detach().clone()
    layer(torch.randn(8, 24, 9).bfloat16()).square().mean().backward()
    optimizer.step()
    assert isinstance(shield._guards[0]._plan.guarded[0].update, Factored)
    assert not torch.equal(layer.weight, before)


def test_stacks_do_what_their_members_do() -> None:
    torch.manual_seed(0)
    for bias in (True, False):
        layers = [nn.Linear(9, 7, bias=bias).double() for _ in range(3)]
        both = nn.ModuleList([*layers, *(nn.LayerNorm(7).double() for _ in range(3))])
        claims = []
        for number in range(3):
            rows = torch.randn(20, 3).double() @ torch.randn(3, 9 + bias).double()
            claims.append(Conceptor.from_states(rows[None], 2.0 + number))
        for number in range(3):
            claims.append(Conceptor.from_states(torch.randn(7, 5, 2).double(), 0.5 + number))
        stack = copy.deepcopy(both)
        for model in (both, stack):
            sites = scan(model, [], []).sites.values()
            members = [
                make_update(site, site.active(), Projector(claimed, torch.float64))
                for site, claimed in zip(sites, claims)
            ]
            for update in members:
                update.mark()
            pieces = [u.correct for u in members] if model is both else stacked(members)
            assert len(pieces) == (6 if model is both else 2)
            generator = torch.Generator().manual_seed(1)
            for _ in range(3):
                for parameter in model.parameters():
                    parameter.data.add_(torch.randn(parameter.shape, generator=generator))
                for piece in pieces:
                    piece()
        for one, other in zip(both.parameters(), stack.parameters()):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


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
    torch.manual_seed(0)
    m = TiedText().double()
    bare = copy.deepcopy(m)
    shield = Shield(m, 2.0, rank=4, warn_at_quota=1.0).remember(torch.arange(known))
    before = m.words.weight.detach().clone()
    generator = torch.Generator().manual_seed(1)
    tokens = [torch.randint(30, (16,), generator=generator) for _ in range(5)]
    make: Any = torch.optim.AdamW
    optimizer, other = shield.guard(make(m.parameters())), make(bare.parameters())
    for one, steps in ((m, optimizer), (bare, other)):
        one(tokens[0]).square().sum().backward()
        steps.step()
    words, head = shield.conceptors()["words"], shield.conceptors()["head"]
    claimed = head.strongest(4)[0].matrix()
    change = (bare.words.weight.detach() - before) @ (torch.eye(12).double() - claimed)
    wanted = before + (1 - words.matrix()[:, 0]) * change
    torch.testing.assert_close(m.words.weight.detach(), wanted, rtol=0, atol=1e-13)
    for text in tokens:
        optimizer.zero_grad()
        m(text).square().sum().backward()
        optimizer.step()
    (guarded,) = shield._guards[0]._plan.guarded
    assert isinstance(guarded.update, Tied)
    factored = guarded.update.factored
    now = m.words.weight.detach() @ factored.into[0][0]
    torch.testing.assert_close(factored.kept[0], now, rtol=0, atol=1e-13)


def test_memory_order() -> None:
    weight = torch.randn(5, 4, 3, 2)
    for tensor in (weight, weight.to(memory_format=torch.channels_last)):
        found = in_place(tensor[None])
        assert found is not None
        block, columns = found
        assert block.data_ptr() == tensor.data_ptr()
        torch.testing.assert_close(block[0], tensor.flatten(1)[:, columns], rtol=0, atol=0)
    assert in_place(weight.transpose(0, 1)[None]) is None


def test_numbers_split_in_two() -> None:
    x = torch.randn(1000) * torch.logspace(-20, 20, 1000)
    high, low = split(x)
    assert low is not None
    assert torch.equal(high + low, x)
    assert bool((low.abs() <= 2**-10 * x.abs()).all())
    assert torch.equal(rounded(high), high)
    parts = thirds(x[:, None]).float()
    torch.testing.assert_close(parts.sum(1), x, rtol=2**-22, atol=0)
    weights, factor = torch.randn(8, 50), torch.randn(50, 4)
    found = sharp_product(weights, halves(factor))
    torch.testing.assert_close(found, weights @ factor, rtol=0, atol=1e-5)
    half, none = split(x.bfloat16())
    assert none is None
    assert torch.equal(half, x.bfloat16().float())


def test_settings_of_precision_come_back() -> None:
    matmul: Any = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("before torch 2.9")
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        with exactly():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
