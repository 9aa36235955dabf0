"""Under DistributedDataParallel every rank holds the conceptors of one process on all data."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from conceptors import Shield
from processes import Pair
from shield.common import train
from shield.parted import OPTIMIZERS, Rank, largest_difference, matrices, part, weights


def images(seed: int, count: int) -> Tensor:
    """`[count, 1, 6, 6]`, each task in eight dimensions of the 36."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(8, 36, generator=generator, dtype=torch.float64)
    x = torch.randn(count, 8, generator=generator, dtype=torch.float64) @ basis / 3
    return x.reshape(count, 1, 6, 6)


def convnet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=3),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 32),
        nn.Tanh(),
        nn.Linear(32, 3),
    ).double()


def wrapped(model: nn.Module, rank: Rank) -> nn.Module:
    return model if rank is None else DistributedDataParallel(model)


OPTIONS: dict[str, dict[str, Any]] = {
    "soft": {"aperture": 30.0},
    "hard": {"aperture": 30.0, "hard": True},
    "auto": {},
    "sketched": {"aperture": 30.0, "rank": 12},
}


def two_tasks(rank: Rank, optimizer_name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Learn, remember, learn again under DDP; an odd number of samples: rank 0 sees one more."""
    inner = convnet()
    model = wrapped(inner, rank)
    shield = Shield(model, **options)
    optimizer = shield.guard(OPTIMIZERS[optimizer_name](model.parameters()))
    # so few that a sketch of 12 directions loses nothing
    old, new = images(1, 11 if "rank" in options else 33), images(2, 24)
    train(model, optimizer, part(old[: len(old) // 2 * 2], rank), 5)
    with mock.patch("conceptors.shield.options._DENSE", 20 if "rank" in options else 8192):
        shield.remember(part(old, rank).split(5))
    train(model, optimizer, part(new, rank), 20)
    return {
        "unwrapped": shield.model is inner,
        "conceptors": matrices(shield),
        "weights": weights(inner),
    }


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_ddp_is_one_process_on_all_data(
    pair: Pair, optimizer: str, options: dict[str, Any]
) -> None:
    alone = two_tasks(None, optimizer, options)
    first, second = pair(two_tasks, optimizer, options)
    assert first["unwrapped"]
    # not to rounding but to the last bit: ranks that drift apart never meet again
    assert largest_difference(first["conceptors"], second["conceptors"]) == 0
    assert largest_difference(first["weights"], second["weights"]) == 0
    assert largest_difference(first["conceptors"], alone["conceptors"]) < 1e-8
    assert largest_difference(first["weights"], alone["weights"]) < 1e-8


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(6, 5)
        self.heads = nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 3)])
        self.double()

    def forward(self, x: Tensor, head: int) -> Tensor:
        found: Tensor = self.heads[head](self.body(x).tanh())
        return found


def uneven(rank: Rank, kind: str) -> dict[str, Tensor]:
    """Ranks that see different layers, or nothing at all."""
    model = TwoHeads()
    shield = Shield(wrapped(model, rank), aperture=5.0)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 10, 6, generator=generator, dtype=torch.float64)
    batches = [(x[0], 0), (x[1], 1)]
    if kind == "a head a rank":
        mine = batches if rank is None else [batches[rank]]
    else:
        mine = [] if rank == 1 else batches
    shield.remember(mine, feed=lambda net, batch: net(*batch))
    return matrices(shield)


@pytest.mark.parametrize("kind", ["a head a rank", "an empty loader"])
def test_ddp_rank_without_batches_takes_part(pair: Pair, kind: str) -> None:
    alone = uneven(None, kind)
    first, second = pair(uneven, kind)
    assert set(first) == {"body", "heads.0", "heads.1"}
    assert largest_difference(first, second) == 0
    assert largest_difference(first, alone) < 1e-12


def refused(rank: Rank, kind: str) -> str:
    """A call that must fail on every rank, and leave the group in step; returns the message."""
    model = wrapped(convnet(), rank)
    shield = Shield(model, aperture=5.0)
    good = images(1, 8)
    bad: Any = []
    if kind == "nan on rank 0":
        bad = [good, torch.full_like(good, torch.nan)] if rank == 0 else [good, good]
    try:
        shield.remember(bad)
        message = "nothing was refused"
    except ValueError as error:
        message = str(error)
    assert shield.n_tasks == 0
    shield.remember([part(good, rank)])  # the ranks still meet
    return message


def test_ddp_an_error_on_one_rank_is_an_error_on_all(pair: Pair) -> None:
    for message in pair(refused, "empty"):
        assert "nothing was remembered" in message
    first, second = pair(refused, "nan on rank 0")
    assert "NaN" in first
    assert "nothing was remembered" in second
