"""Parameters that stand beside layers: tokens and positions are held, scales are protected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield
from shield.common import quiet, train

WIDTH = 6


class Tokens(nn.Module):
    """What vision transformers put before, and add to, their patches."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 4, WIDTH))
        self.mask_token = nn.Parameter(torch.randn(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:  # [n, 3, d] -> [n, 4, d]
        return torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.positions


class Scaling(nn.Module):
    """x times one number per channel, in one of the ways that people write it."""

    def __init__(self, how: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(shape) + 0.5)
        self.how = how
        self.inner = nn.Identity()  # a module with parts, which is no layer

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.inner(x), self.scale)


def in_a_kernel(x: Tensor, scale: Tensor) -> Tensor:
    """Where no mode sees it."""
    with torch._C.DisableTorchFunction():
        return x * scale


def put_in(x: Tensor, token: Tensor) -> Tensor:
    """In the place of some rows, as masks are."""
    x = x.clone()
    x[:, 1] = token.to(x.dtype)
    return x


SCALES: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor], float]] = {
    # shape, what is done, and the factor that the rows come with
    "vector": ((WIDTH,), lambda x, s: x * s, 1.0),
    "from-the-left": ((WIDTH,), lambda x, s: s * x, 1.0),
    "column": ((WIDTH, 1), lambda x, s: (s * x.mT).mT, 1.0),
    "beside-one": ((WIDTH,), lambda x, s: x * (1 + s.float().double()), 1.0),
    "twice": ((WIDTH,), lambda x, s: x * (s * 2.0), 2.0),
}
HELD: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]]] = {
    "added": ((WIDTH,), lambda x, s: x + s),
    "divisor": ((WIDTH,), lambda x, s: x / s),
    "both": ((WIDTH,), lambda x, s: x * s + s),
    "out-of-sight": ((WIDTH,), in_a_kernel),
    "put-in": ((WIDTH,), put_in),
    "read": ((1,), lambda x, s: x * s.item() + 0 * s),
}


def draw(seed: int, rank: int = 2) -> Tensor:
    """`[n, 3, d]` in a few directions, with a channel that is always zero."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(5, 3, rank, generator=generator, dtype=torch.float64)
    x = left @ torch.randn(rank, WIDTH, generator=generator, dtype=torch.float64)
    return x * (torch.arange(WIDTH) > 0)


def network(first: nn.Module) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(first, nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 2)).double()


def test_tokens_and_positions_are_held_once_a_task_has_used_them() -> None:
    model = network(Tokens())
    shield = quiet(model, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1))
    start = model[0].cls_token.detach().clone()
    train(model, optimizer, draw(0), steps=3)
    assert not torch.equal(model[0].cls_token, start)  # the first task is free
    shield.remember(draw(0))
    before, held = model(draw(0)).detach(), model[0].positions.detach().clone()
    first = (model(draw(1)) - 1).square().mean().item()
    train(model, optimizer, draw(1), steps=30)
    assert torch.equal(model[0].positions, held)
    torch.testing.assert_close(model(draw(0)).detach(), before, rtol=1e-9, atol=1e-9)
    assert (model(draw(1)) - 1).square().mean().item() < 0.9 * first
    rows = {row.layer: row for row in shield.explain()}
    for name in ("0.cls_token", "0.positions", "0.mask_token"):
        assert rows[name].done == "fixed: all of it is protected"
        assert rows[name].quota == 1.0


@pytest.mark.parametrize("name", SCALES)
def test_what_a_scale_multiplies_are_its_rows(name: str) -> None:
    shape, how, factor = SCALES[name]
    model, x = network(Scaling(how, *shape)), draw(0)
    sums = quiet(model, 3.0).remember(x)
    odds = 9 * (factor * x).flatten(0, 1).square().mean(0)
    torch.testing.assert_close(sums.conceptors()["0.scale"].matrix()[:, 0, 0], odds / (1 + odds))
    sums.detach()
    shield = quiet(model, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=0.01))
    shield.remember(x)
    before, scale = model(x).detach(), model[0].scale.detach().flatten().clone()
    train(model, optimizer, draw(1) + (torch.arange(WIDTH) == 0), steps=5)
    moved = model[0].scale.detach().flatten() != scale
    assert moved.tolist() == [True] + [False] * (WIDTH - 1)  # the first channel was silent
    torch.testing.assert_close(model(x).detach(), before, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", HELD)
def test_what_is_used_in_any_other_way_is_held(name: str) -> None:
    shape, how = HELD[name]
    model, x = network(Scaling(how, *shape)), draw(0)
    shield = quiet(model, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=0.01))
    shield.remember(x)
    before, held = model(x).detach(), model[0].scale.detach().clone()
    train(model, optimizer, draw(1) + 1, steps=5)
    assert torch.equal(model[0].scale, held)
    torch.testing.assert_close(model(x).detach(), before, rtol=1e-9, atol=1e-9)


def test_matrices_of_unknown_layers_are_still_refused() -> None:
    model = network(nn.Identity())
    model[0].register_parameter("table", nn.Parameter(torch.randn(4, WIDTH)))
    with pytest.raises(ValueError, match=r"0\.table \(Identity, shape \[4, 6\]\)"):
        Shield(model)
