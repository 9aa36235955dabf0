"""Under FSDP2 every rank holds the conceptors of one process on all data.

A forward pass gathers weights from all ranks, so that with FSDP2, unlike DDP, every rank needs
as many batches as the others in `remember` (as in training).
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield, UnprotectedWarning
from helpers import Products
from processes import Pair
from shield.common import train
from shield.parted import APERTURES, OPTIMIZERS, Rank, largest_difference, matrices, part, weights


class TokenNet(nn.Module):
    """Embedding, Conv2d, LayerNorm and Linear; 7 and 1 rows do not divide by two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(12, 4)
        self.conv = nn.Conv2d(4, 6, 2)
        self.norm = nn.LayerNorm(6)
        self.hidden = nn.Linear(6 * 9, 7)
        self.narrow = nn.Linear(7, 1)
        self.head = nn.Linear(7, 3, bias=False)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).movedim(-1, 1)  # [n, 4, 4, 4]
        x = self.norm(self.conv(x).movedim(1, -1)).tanh()  # [n, 3, 3, 6]
        x = self.hidden(x.flatten(1)).tanh()
        found: Tensor = self.head(x) + self.narrow(x)
        return found


def tokens(seed: int, low: int, high: int, count: int = 16) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (count, 4, 4), generator=generator)


def sharded(model: nn.Module, rank: Rank) -> nn.Module:
    """FSDP2 over the two processes: `hidden` a group of its own, the rest with the root."""
    if rank is not None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        for inner in (getattr(model, "hidden", None), getattr(model, "attention", None)):
            if inner is not None:
                fully_shard(inner, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def two_sharded_tasks(rank: Rank, optimizer_name: str, aperture: Any) -> dict[str, Any]:
    """Learn, remember, learn again."""
    model = sharded(TokenNet(), rank)
    if rank is not None:
        assert all(hasattr(p, "to_local") for p in model.parameters())
    shield = Shield(model, aperture, rows=None, warn_at_quota=1.0)
    optimizer = shield.guard(OPTIMIZERS[optimizer_name](model.parameters()))
    old, new = tokens(1, 0, 8), tokens(2, 4, 12)
    train(model, optimizer, part(old, rank), 5)
    shield.remember([part(old, rank)])
    train(model, optimizer, part(new, rank), 10)
    return {"conceptors": matrices(shield), "weights": weights_sharded(model)}


def many_sharded_tasks(rank: Rank, optimizer_name: str, decay: float) -> dict[str, Any]:
    """An optimizer a task, and an evaluation before `remember`.

    After a forward pass without a backward pass FSDP2 leaves the root's parameters gathered:
    `model.parameters()` are then other tensors than those the optimizer holds.
    """
    model = sharded(TokenNet(), rank)
    parameters = list(model.parameters())
    shield = Shield(model, 20.0, increment_decay=decay, rows=None, warn_at_quota=1.0)
    old, new = tokens(1, 0, 8), tokens(2, 4, 12)
    for task in (old, new, old.flip(0), new):
        optimizer = shield.guard(OPTIMIZERS[optimizer_name](parameters))
        train(model, optimizer, part(task, rank), 5)
        with torch.no_grad():
            model(part(task, rank))
        shield.remember([part(task, rank)])
    return {"conceptors": matrices(shield), "weights": weights_sharded(model)}


def weights_sharded(model: nn.Module) -> dict[str, Tensor]:
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    return weights(model)


@pytest.mark.parametrize("aperture", APERTURES.values(), ids=APERTURES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fsdp_is_one_unsharded_process(pair: Pair, optimizer: str, aperture: Any) -> None:
    """With "auto" weights are pulled back as well, each rank's own rows."""
    alone = two_sharded_tasks(None, optimizer, aperture)
    first, second = pair(two_sharded_tasks, optimizer, aperture)
    assert largest_difference(first["conceptors"], second["conceptors"]) == 0
    assert largest_difference(first["conceptors"], alone["conceptors"]) < 1e-8
    assert largest_difference(first["weights"], alone["weights"]) < 1e-8


@pytest.mark.parametrize("decay", [0.0, 0.05], ids=["", "increment-decay"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fsdp_with_gathered_parameters(pair: Pair, optimizer: str, decay: float) -> None:
    alone = many_sharded_tasks(None, optimizer, decay)
    first, second = pair(many_sharded_tasks, optimizer, decay)
    assert largest_difference(first["conceptors"], second["conceptors"]) == 0
    assert largest_difference(first["conceptors"], alone["conceptors"]) < 1e-8
    assert largest_difference(first["weights"], alone["weights"]) < 1e-8


def sharded_protection(rank: Rank, optimizer_name: str) -> float:
    """How far outputs on the first task move, relative, with hard conceptors."""
    model = sharded(TokenNet(), rank)
    shield = Shield(model, aperture=1e5, hard=True)
    optimizer = shield.guard(OPTIMIZERS[optimizer_name](model.parameters()))
    old, new = tokens(1, 0, 3, 4), tokens(2, 0, 12)
    shield.remember([part(old, rank)])
    before = model(old).detach().clone()
    train(model, optimizer, part(new, rank), 20)
    return float((model(old).detach() - before).norm() / before.norm())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fsdp_training_is_protected(pair: Pair, optimizer: str) -> None:
    assert max(pair(sharded_protection, optimizer)) < 1e-9


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.gru = nn.GRU(6, 5, batch_first=True)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.gru(self.attention(x, x, x)[0])[0][:, -1]
        return found


def attention_task(rank: Rank) -> dict[str, Any]:
    model = sharded(Attention(), rank)
    shield = Shield(model, aperture=20.0, warn_at_quota=1.0)
    optimizer = shield.guard(OPTIMIZERS["adamw"](model.parameters()))
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 8, 3, 6, generator=generator, dtype=torch.float64)
    train(model, optimizer, part(x[0], rank), 3)
    shield.remember([part(x[0], rank)])
    train(model, optimizer, part(x[1], rank), 3)
    return {"conceptors": matrices(shield), "weights": weights_sharded(model)}


def test_fsdp_attention_and_recurrent_layers(pair: Pair) -> None:
    alone = attention_task(None)
    first, _ = pair(attention_task)
    assert largest_difference(first["conceptors"], alone["conceptors"]) < 1e-8
    assert largest_difference(first["weights"], alone["weights"]) < 1e-8


# --- notes of the weights, kept from step to step ---------------------------------------------


def step_work(rank: Rank, optimizer_name: str) -> list[int]:
    """Operations of the products in each of six steps, and how often weights were gathered."""
    from torch.distributed.tensor import DTensor

    model = sharded(TokenNet(), rank)
    shield = Shield(model, 20.0, warn_at_quota=1.0)
    optimizer = shield.guard(OPTIMIZERS[optimizer_name](model.parameters()))
    x = part(tokens(1, 0, 8), rank)
    shield.remember([x])
    gathers = 0
    gather = DTensor.full_tensor

    def counted(tensor: Any) -> Tensor:
        nonlocal gathers
        gathers += 1
        return gather(tensor)

    flops, total = [], []
    DTensor.full_tensor = counted  # type: ignore[assignment, method-assign]
    try:
        for _ in range(6):
            optimizer.zero_grad()
            (model(x) - 1).square().mean().backward()
            gathers = 0
            with Products() as seen:
                optimizer.step()
            flops.append(seen.flops)
            total.append(gathers)
    finally:
        DTensor.full_tensor = gather  # type: ignore[method-assign]
    return [*flops[-2:], *total]


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_fsdp_notes_nothing_anew_after_the_first_step(pair: Pair, optimizer: str) -> None:
    """Two processes together multiply as much as one does; all have to gather is less."""
    alone = step_work(None, optimizer)
    both = pair(step_work, optimizer)
    assert alone[0] == alone[1] > 0
    for step in range(2):
        assert sum(work[step] for work in both) == alone[step]
    for work in both:
        first, *later = work[2:]
        assert first > max(later)
