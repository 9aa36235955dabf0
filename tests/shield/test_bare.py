"""Parameters that stand beside layers: tokens and positions are held, scales are protected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield
from conceptors.shield.blocks import scan
from conceptors.shield.remember.run import collect
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
    "function": ((1, WIDTH), torch.mul, 1.0),
    "column": ((WIDTH, 1), lambda x, s: (s * x.mT).mT, 1.0),
    "channels-first": ((WIDTH, 1, 1), lambda x, s: (x.mT[..., None] * s)[..., 0].mT, 1.0),
    "index": ((WIDTH,), lambda x, s: (s[:, None] * x.mT).mT, 1.0),
    "flattened": ((1, WIDTH), lambda x, s: x * (1 * s.flatten()), 1.0),
    "cast": ((WIDTH,), lambda x, s: x * s.to(x.dtype), 1.0),
    "beside-one": ((WIDTH,), lambda x, s: x * (1 + s.float().double()), 1.0),
    "twice": ((WIDTH,), lambda x, s: x * (s * 2.0), 2.0),
}
HELD: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]]] = {
    "added": ((WIDTH,), lambda x, s: x + s),
    "in-place": ((WIDTH,), lambda x, s: x.clone().mul_(s)),
    "divisor": ((WIDTH,), lambda x, s: x / s),
    "exponent": ((), lambda x, s: x * s.exp()),
    "both": ((WIDTH,), lambda x, s: x * s + s),
    "of-itself": ((WIDTH,), lambda x, s: x * (s * s)),
    "shuffled": ((WIDTH,), lambda x, s: x * s[torch.arange(WIDTH).flip(0)]),
    "out-of-sight": ((WIDTH,), in_a_kernel),
    "put-in": ((WIDTH,), put_in),
    "read": ((1,), lambda x, s: x * s.item() + 0 * s),
    "prelu": ((1,), nn.functional.prelu),
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


def moments_of(model: nn.Module, *batches: Tensor) -> Any:
    sites = scan(model, (), ()).sites
    return collect(
        model,
        sites,
        list(batches),
        feed=None,
        limit=None,
        rows=None,
        seed=0,
        dtype=torch.float64,
        sketch=lambda dim: None,
        progress=False,
    )


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
        assert rows[name].done == "held fixed: all of it is claimed"
        assert rows[name].quota == 1.0


def test_tokens_are_held_by_soft_conceptors_too() -> None:
    for aperture in ("auto", 0.5):
        model = network(Tokens())
        shield = quiet(model, aperture)
        optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        train(model, optimizer, draw(0), steps=3)
        shield.remember(draw(0))
        held = [p.detach().clone() for p in model[0].parameters()]
        for seed in (1, 2):
            train(model, optimizer, draw(seed), steps=3)
            shield.remember(draw(seed))
        assert all(map(torch.equal, model[0].parameters(), held))
        assert not torch.equal(model[1].weight, network(Tokens())[1].weight)


@pytest.mark.parametrize("name", SCALES)
def test_what_a_scale_multiplies_are_its_rows(name: str) -> None:
    shape, how, factor = SCALES[name]
    model, x = network(Scaling(how, *shape)), draw(0)
    found = moments_of(model, x)["0.scale"]
    wanted = (factor * x).flatten(0, 1).square().mean(0)
    torch.testing.assert_close(found.correlation()[:, 0, 0], wanted)
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
    assert moments_of(model, x)["0.scale"].is_constant
    shield = quiet(model, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=0.01))
    shield.remember(x)
    before, held = model(x).detach(), model[0].scale.detach().clone()
    train(model, optimizer, draw(1) + 1, steps=5)
    assert torch.equal(model[0].scale, held)
    torch.testing.assert_close(model(x).detach(), before, rtol=1e-9, atol=1e-9)


def test_scales_learn_softly_over_three_tasks() -> None:
    model = network(Scaling(lambda x, s: x * s, WIDTH)).requires_grad_(False)
    model[0].scale.requires_grad_(True)
    shield = quiet(model, "auto")
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=0.01))
    for seed in range(3):
        before = model[0].scale.detach().clone()
        train(model, optimizer, draw(seed), steps=5)
        assert not torch.equal(model[0].scale, before)
        shield.remember(draw(seed))


def test_prompts_of_other_tasks_stay_free() -> None:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompts = nn.ParameterList([torch.randn(1, 2, WIDTH) for _ in range(2)])
            self.body = nn.Linear(WIDTH, 2)
            self.task = 0

        def forward(self, x: Tensor) -> Tensor:
            prompt = self.prompts[self.task].expand(len(x), -1, -1)
            return self.body(torch.cat([prompt, x], 1))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = Prompted().double()
    shield = quiet(model, 1e6, hard=True)
    optimizer = shield.guard(torch.optim.Adam(model.parameters(), lr=0.01))
    shield.remember(draw(0))
    before, prompts = model(draw(0)).detach(), [p.detach().clone() for p in model.prompts]
    model.task = 1
    train(model, optimizer, draw(1), steps=3)
    assert torch.equal(model.prompts[0], prompts[0])
    assert not torch.equal(model.prompts[1], prompts[1])
    shield.remember(draw(1))
    assert (shield.quota()["prompts.0"], shield.quota()["prompts.1"]) == (1.0, 1.0)
    model.task = 0
    torch.testing.assert_close(model(draw(0)).detach(), before, rtol=1e-9, atol=1e-9)


def test_what_is_put_in_place_of_rows_is_seen_without_a_call_of_its_owner() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.ParameterDict({"mask": nn.Parameter(torch.randn(WIDTH))})
            self.body = nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(put_in(x, self.tokens["mask"]))  # type: ignore[no-any-return]

    shield = quiet(Masked().double(), 1e4, hard=True)
    shield.remember(draw(0))
    assert shield.quota()["tokens.mask"] == 1.0


def test_a_constant_of_a_later_batch_is_seen() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.ParameterDict({"rare": nn.Parameter(torch.randn(1, 1, WIDTH))})
            self.body = nn.Linear(WIDTH, 2)

        def forward(self, x: Tensor) -> Tensor:
            rare = bool((x > 100).any())
            return self.body(x + self.extra["rare"] if rare else x)  # type: ignore[no-any-return]

    model = Sometimes().double()
    batches = [torch.randn(400, 3, WIDTH, dtype=torch.float64) for _ in range(60)]
    batches[41][0, 0, 0] = 1000.0
    shield = Shield(model, warn_at_quota=1.0)
    shield.remember(batches)
    assert shield.quota()["extra.rare"] == 1.0


def test_what_is_held_is_held_after_loading() -> None:
    model = network(Tokens())
    shield = quiet(model, 9.0, keep_tasks=True)
    shield.remember(draw(0))
    state = shield.state_dict()
    shield.detach()
    again = quiet(model, 9.0, keep_tasks=True)
    again.load_state_dict(state)
    optimizer = again.guard(torch.optim.Adam(model.parameters(), lr=0.01))
    held = model[0].cls_token.detach().clone()
    train(model, optimizer, draw(1), steps=2)
    assert torch.equal(model[0].cls_token, held)
    again.forget(0)
    train(model, optimizer, draw(1), steps=2)
    assert not torch.equal(model[0].cls_token, held)


def test_matrices_of_unknown_layers_are_still_refused() -> None:
    model = network(nn.Identity())
    model[0].register_parameter("table", nn.Parameter(torch.randn(4, WIDTH)))
    with pytest.raises(ValueError, match=r"0\.table \(Identity, shape \[4, 6\]\)"):
        Shield(model)


def test_a_scale_is_sampled_like_any_layer() -> None:
    model = network(Scaling(lambda x, s: x * s, WIDTH))
    x = torch.randn(4000, 30, WIDTH, dtype=torch.float64) * torch.arange(WIDTH)
    shield = Shield(model, warn_at_quota=1.0, rows=2000)
    shield.remember([x])
    share = shield.quota()["0.scale"]
    assert share == pytest.approx(0.9 * (WIDTH - 1) / WIDTH, abs=1e-3)
