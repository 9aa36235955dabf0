"""How much of what a task wants passes: <G, G F> / <G, G>."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, ShieldFullWarning
from conceptors.shield.room import warn_if_stuck
from conceptors.shield.step.passing import Passing
from helpers import normal
from shield.step.common import backward, gradients, mixed, train


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_share_of_a_first_step_is_that_of_the_definition(optimizer: str) -> None:
    made: dict[str, Any] = {
        "sgd": lambda p: torch.optim.SGD(p, lr=1e-3),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    }
    model = mixed()
    shield = Shield(model, 3.0, warn_at_quota=1.0).remember(torch.arange(5))
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


def test_looks_become_seldom_and_means_run_on() -> None:
    seen = Passing()
    looks = [step for step in range(1, 5001) if seen.is_due()]
    assert looks == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096]
    seen = Passing()
    seen.see("fc", torch.tensor([1.0, 2.0]))
    assert seen.shares() == {"fc": 0.5}
    seen.see("fc", torch.tensor([0.0, 4.0]))
    assert seen.shares()["fc"] == pytest.approx((0.5 * 1.0) / (0.5 * 2.0 + 0.5 * 4.0))
    seen.see("fc", torch.tensor([3.0, 3.0]))
    assert seen.shares()["fc"] == pytest.approx((0.25 + 1.5) / (1.5 + 1.5))


def test_shares_are_shares() -> None:
    """Whatever rounding does, and where there was no gradient nothing is said."""
    seen = Passing()
    seen.see("over", torch.tensor([1.0 + 1e-6, 1.0]))
    seen.see("under", torch.tensor([-1e-6, 1.0]))
    seen.see("none", torch.zeros(2))
    assert seen.shares() == {"over": 1.0, "under": 0.0}


def stuck(width: int) -> tuple[nn.Linear, Shield, Tensor]:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 5).double(), normal(0, 20, width) @ normal(1, width, 8)
    shield = Shield(layer, 1e3, warn_at_quota=1.0, rows=None).remember(x)
    return layer, shield, x


@pytest.mark.parametrize("width", [2, 8], ids=["free space is left", "nothing is left"])
def test_a_task_that_hardly_passes_is_told_once(width: int) -> None:
    layer, shield, _ = stuck(width)
    optimizer = shield.guard(torch.optim.AdamW(layer.parameters(), lr=1e-4))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for seed in range(300):
            optimizer.zero_grad()
            layer(normal(seed, 6, 8)).square().sum().backward()
            optimizer.step()
    told = [str(w.message) for w in said if w.category is ShieldFullWarning]
    assert len(told) == (1 if width == 8 else 0)
    assert not told or "Linear (0.0%)" in told[0]


@pytest.mark.parametrize(
    ("share", "told"), [(0.06, ()), (0.03, ("number",)), (0.005, ("number", "auto"))]
)
def test_automatic_apertures_may_let_less_pass(share: float, told: tuple[str, ...]) -> None:
    """They are soft, so that a layer with few percent still learns."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_if_stuck({"number": share, "auto": share}, {"number": False, "auto": True})
    found = " ".join(str(w.message) for w in said if w.category is ShieldFullWarning)
    assert [name for name in ("number", "auto") if f"{name} ({share:.1%})" in found] == list(told)
    assert len(said) == bool(told)


def test_looking_changes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    finals = []
    for looks in (True, False):
        if not looks:
            monkeypatch.setattr(Passing, "is_due", lambda self: False)
        model = mixed()
        shield = Shield(model, 3.0, warn_at_quota=1.0).remember(torch.arange(5))
        train(model, shield.guard(torch.optim.AdamW(model.parameters())), 3)
        finals.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *finals))
