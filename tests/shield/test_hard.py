"""`Shield(model, hard=True)`: what was learned stays, to rounding, and the rest is free."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Auto, Energy, Shield, ShieldFullWarning


def network(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 96), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 3)).to(
        dtype
    )


def flat(n: int = 12, rank: int = 4, seed: int = 1) -> Tensor:
    """`[n, 40]` in a few directions, each a tenth of the one before."""
    draw = torch.Generator().manual_seed(seed)
    sizes = 10.0 ** -torch.arange(rank)
    return torch.randn(n, rank, generator=draw) * sizes @ torch.randn(rank, 40, generator=draw)


def after_another_task(aperture: Any) -> tuple[float, float]:
    """Drift of the first task, and the loss of the second as a share of what it was."""
    model, old, new = network(), flat(), flat(60, 40, seed=2)
    shield = Shield(model, aperture, hard=True)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters(), lr=3e-3))
    shield.remember(old)
    before, losses = model(old).detach(), []
    for _ in range(100):
        optimizer.zero_grad()
        loss = (model(new) - new[:, :3]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    drift = (model(old).detach() - before).norm() / before.norm()
    return float(drift), losses[-1] / losses[0]


def test_nothing_drifts_and_what_is_free_learns() -> None:
    drift, left = after_another_task("auto")
    assert drift < 1e-5
    assert left < 0.5


def test_a_share_of_the_energy_leaves_more_free() -> None:
    drift, left = after_another_task(Energy(0.9))
    assert drift > 0.05
    assert left < after_another_task("auto")[1]


@pytest.mark.parametrize(
    ("aperture", "same"), [("auto", Energy(1.0)), (Auto(), Energy(1.0)), (Auto(0.8), Energy(0.8))]
)
def test_it_is_energy_all_of_it_unless_a_share_is_named(aperture: Any, same: Energy) -> None:
    ours, theirs = (
        Shield(network(), choice, hard=True, warn_at_quota=1.0).remember(flat())
        for choice in (aperture, same)
    )
    for name, conceptor in ours.conceptors().items():
        assert torch.equal(conceptor.matrix(), theirs.conceptors()[name].matrix())


def test_by_itself_a_soft_shield_claims_nine_tenths() -> None:
    ours, theirs = (Shield(network(), a).remember(flat()) for a in ("auto", Auto(0.9)))
    for name, conceptor in ours.conceptors().items():
        assert torch.equal(conceptor.matrix(), theirs.conceptors()[name].matrix())


@pytest.mark.parametrize("kind", ["float64", "float32", "float32 sums", "float16", "bfloat16"])
def test_rounding_is_not_claimed(kind: str) -> None:
    """More rows than inputs, in two directions and the bias: all others are noise."""
    name, _, sums = kind.partition(" ")
    dtype = getattr(torch, name)
    model, rows = network(dtype), flat(400, 2).to(dtype)
    precision = torch.float32 if sums else torch.float64
    shield = Shield(model, hard=True, dtype=precision, warn_at_quota=1.0).remember(rows)
    found = {name: int(values.sum()) for name, values in shield.spectra().items()}
    assert (found["0"], found["1"]) == (3, 3)
    assert found["3"] > 8  # as tanh bends them into more


def test_a_full_layer_is_named_with_the_remedy() -> None:
    with pytest.warns(ShieldFullWarning, match=r"in: 0 \(100.0%\).*Energy\(0\.9\) where hard"):
        Shield(network(), hard=True).remember(torch.randn(200, 40)).detach()
