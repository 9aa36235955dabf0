"""Under FSDP2 every rank holds the conceptors of one process on all data.

A forward pass gathers weights from all ranks, so that with FSDP2, unlike DDP, every rank needs
as many batches as the others in `remember` (as in training).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conceptors import Shield
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
        fully_shard(model.get_submodule("hidden"), mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def two_sharded_tasks(rank: Rank, optimizer_name: str, aperture: Any) -> dict[str, Any]:
    """Learn, remember, learn again."""
    model = sharded(TokenNet(), rank)
    if rank is not None:
        assert all(hasattr(p, "to_local") for p in model.parameters())
    shield = Shield(model, aperture)
    optimizer = shield.guard(OPTIMIZERS[optimizer_name](model.parameters()))
    old, new = tokens(1, 0, 8), tokens(2, 4, 12)
    train(model, optimizer, part(old, rank), 5)
    shield.remember([part(old, rank)])
    train(model, optimizer, part(new, rank), 10)
    return {"conceptors": matrices(shield), "weights": weights_sharded(model)}


def many_sharded_tasks(rank: Rank, optimizer_name: str) -> dict[str, Any]:
    """An optimizer a task, and an evaluation before `remember`.

    After a forward pass without a backward pass FSDP2 leaves the root's parameters gathered:
    `model.parameters()` are then other tensors than those the optimizer holds.
    """
    model = sharded(TokenNet(), rank)
    parameters = list(model.parameters())
    shield = Shield(model, 20.0, increment_decay=0.05)
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


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fsdp_with_gathered_parameters(pair: Pair, optimizer: str) -> None:
    alone = many_sharded_tasks(None, optimizer)
    first, second = pair(many_sharded_tasks, optimizer)
    assert largest_difference(first["conceptors"], second["conceptors"]) == 0
    assert largest_difference(first["conceptors"], alone["conceptors"]) < 1e-8
    assert largest_difference(first["weights"], alone["weights"]) < 1e-8


def middle_of_a_task(rank: Rank, aperture: Any) -> tuple[Any, dict[str, Any]]:
    """A model and what must be known of it three steps into its second task."""
    model = sharded(TokenNet(), rank)
    shield = Shield(model, aperture)
    optimizer = shield.guard(OPTIMIZERS["momentum"](model.parameters()))
    old, new = part(tokens(1, 0, 8), rank), part(tokens(2, 4, 12), rank)
    train(model, optimizer, old, 3)
    shield.remember([old])
    train(model, optimizer, new, 3)
    state = {"weights": weights_sharded(model), "shield": shield.state_dict()}
    velocity = {name: optimizer.state[p]["momentum_buffer"] for name, p in model.named_parameters()}
    state["momentum"] = {n: getattr(v, "full_tensor", v.clone)() for n, v in velocity.items()}
    train(model, optimizer, new, 3)
    return weights_sharded(model), state


def taken_up(rank: Rank, aperture: Any, file: Path) -> tuple[Any, Any]:
    """The same weights by a model that is given the state, and the shield's state once more."""
    from conceptors.shield.shards import cut_like

    state = torch.load(file)
    model = sharded(TokenNet(), rank)
    shield = Shield(model, aperture)
    optimizer = shield.guard(OPTIMIZERS["momentum"](model.parameters()))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(cut_like(state["weights"][name], p.data))
            velocity = cut_like(state["momentum"][name], p.data)
            optimizer.state[p]["momentum_buffer"] = velocity
    assert shield.load_state_dict(state["shield"]).fits
    again = shield.state_dict()
    train(model, optimizer, part(tokens(2, 4, 12), rank), 3)
    return weights_sharded(model), again


@pytest.mark.parametrize("aperture", APERTURES.values(), ids=APERTURES)
def test_fsdp_state_is_whole_and_resumes_on_any_number_of_processes(
    pair: Pair, aperture: Any, tmp_path: Path
) -> None:
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    alone, from_one = middle_of_a_task(None, aperture)
    (first, from_two), (_, from_second) = pair(middle_of_a_task, aperture)
    torch.save(from_one, one)
    torch.save(from_two, two)
    for kind in ("notes", "anchors"):
        found = from_two["shield"][kind]
        assert {n: t.shape for n, t in found.items()} == {
            n: t.shape for n, t in from_one["shield"][kind].items()
        }
        assert bool(found) == (kind == "notes" or aperture == "auto")
        assert not found or largest_difference(found, from_second["shield"][kind]) == 0
    for resumed, again in pair(taken_up, aperture, two):
        assert largest_difference(resumed, first) == 0  # bit for bit
        assert largest_difference(again["notes"], from_two["shield"]["notes"]) == 0
    for resumed, _ in pair(taken_up, aperture, one):
        assert largest_difference(resumed, alone) < 1e-8
    assert largest_difference(taken_up(None, aperture, two)[0], alone) < 1e-8


def cut_by_columns(rank: int) -> str:
    """What is said of tensor parallelism that cuts a layer's inputs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"1": RowwiseParallel()})
    with pytest.raises(ValueError, match="sharded by rows") as error:
        Shield(model)
    return str(error.value)


def test_weights_cut_by_columns_are_refused(pair: Pair) -> None:
    for said in pair(cut_by_columns):
        assert "its weights have placements (Shard(dim=1),)" in said
        assert "1.weight" in said
