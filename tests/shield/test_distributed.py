"""Two processes, by DistributedDataParallel or FSDP2, do what one process does on all data.

Each case runs with rank 0, with rank 1, and alone with rank None. With FSDP2 a forward pass gathers
weights from all ranks: unlike DDP, every rank needs equally many batches in `remember`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

from conceptors import Shield
from processes import Pair
from shield.common import samples, train

Rank = int | None
Tensors = dict[str, Tensor]
State = dict[str, Tensors]

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: AdamW(p, lr=1e-2, weight_decay=0.1),
}
by_aperture = pytest.mark.parametrize("aperture", [20.0, "auto"])


def part(x: Tensor, rank: Rank) -> Tensor:
    """Every second sample, or all samples for a process that is alone."""
    return x if rank is None else x[rank::2]


def state_of(model: nn.Module, shield: Shield) -> State:
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    weights: Tensors = {}
    for name, parameter in model.named_parameters():
        value: Any = parameter.detach()
        weights[name] = (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
    claims = {name: conceptor.matrix() for name, conceptor in shield.conceptors().items()}
    return {"weights": weights, "claims": claims}


def difference(a: Tensors, b: Tensors) -> float:
    """The largest."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def agree(pair: Pair, case: Callable[..., State], *args: Any) -> None:
    """Ranks agree to the last bit, or they would drift apart; and with one process, to rounding."""
    alone = case(None, *args)
    first, second = pair(case, *args)
    for name, values in alone.items():
        assert difference(first[name], second[name]) == 0
        assert difference(first[name], values) < 1e-8


def images(seed: int, count: int) -> Tensor:
    """`[count, 1, 6, 6]`, each task in eight dimensions of the 36."""
    return (samples(seed, count, 36, 8) / 3).reshape(count, 1, 6, 6)


def convnet() -> nn.Module:
    torch.manual_seed(0)
    convolution = [nn.Conv2d(1, 4, 3, stride=3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()]
    return nn.Sequential(*convolution, nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 3)).double()


def wrapped(model: nn.Module, rank: Rank) -> nn.Module:
    return model if rank is None else DistributedDataParallel(model)


def two_tasks(rank: Rank, optimizer_name: str, options: dict[str, Any]) -> State:
    """Learn, remember, learn again under DDP; an odd number of samples: rank 0 sees one more."""
    inner = convnet()
    model = wrapped(inner, rank)
    shield = Shield(model, **options)
    assert shield.model is inner
    optimizer = shield.guard(OPTIMIZERS[optimizer_name](model.parameters()))
    # so few samples that a sketch of 12 directions loses nothing
    old, new = images(1, 11 if "rank" in options else 33), images(2, 24)
    train(model, optimizer, part(old[: len(old) // 2 * 2], rank), 5)
    with mock.patch("conceptors.shield.options._DENSE", 20 if "rank" in options else 8192):
        shield.remember(part(old, rank).split(5))
    train(model, optimizer, part(new, rank), 20)
    return state_of(inner, shield)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("sgd", {"aperture": 30.0}),
        ("adamw", {"aperture": 30.0, "hard": True}),
        ("adamw", {}),
        ("sgd", {"aperture": 30.0, "rank": 12}),
    ],
    ids=["soft", "hard", "auto", "sketched"],
)
def test_ddp_is_one_process(pair: Pair, optimizer: str, options: dict[str, Any]) -> None:
    agree(pair, two_tasks, optimizer, options)


def uneven(rank: Rank, kind: str) -> State:
    """Ranks that see different layers, or nothing at all."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(6, 5), nn.Linear(6, 3)]).double()
    model.forward = lambda batch: model[batch[1]](batch[0])
    shield = Shield(wrapped(model, rank), aperture=5.0)
    batches = [(samples(1, 10, 6, 6), 0), (samples(2, 10, 6, 6), 1)]
    if rank is not None:
        batches = [batches[rank]] if kind == "a layer a rank" else batches[: 2 - 2 * rank]
    shield.remember(batches, feed=lambda net, batch: net(batch))
    return state_of(model, shield)


@pytest.mark.parametrize("kind", ["a layer a rank", "an empty loader"])
def test_a_ddp_rank_without_batches_takes_part(pair: Pair, kind: str) -> None:
    agree(pair, uneven, kind)


def refused(rank: Rank, bad: list[Tensor]) -> str:
    """A call that must fail on every rank, and leave the group in step; returns the message."""
    shield = Shield(wrapped(convnet(), rank), aperture=5.0)
    good = images(1, 8)
    with pytest.raises(ValueError, match=r"NaN|nothing was remembered") as error:
        shield.remember(bad if rank == 0 else bad[:1] * len(bad))
    assert shield.n_tasks == 0
    shield.remember([part(good, rank)])  # the ranks still meet
    return str(error.value)


def test_a_ddp_error_on_one_rank_is_an_error_on_all(pair: Pair) -> None:
    for message in pair(refused, []):
        assert "nothing was remembered" in message
    good = images(1, 8)
    first, second = pair(refused, [good, torch.full_like(good, torch.nan)])
    assert "NaN" in first
    assert "nothing was remembered" in second


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

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).movedim(-1, 1)  # [n, 4, 4, 4]
        x = self.norm(self.conv(x).movedim(1, -1)).tanh()  # [n, 3, 3, 6]
        x = self.hidden(x.flatten(1)).tanh()
        return self.head(x) + self.narrow(x)  # type: ignore[no-any-return]


def tokens(rank: Rank, seed: int, low: int, high: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return part(torch.randint(low, high, (16, 4, 4), generator=generator), rank)


def old_and_new(rank: Rank) -> tuple[Tensor, Tensor]:
    return tokens(rank, 1, 0, 8), tokens(rank, 2, 4, 12)


def sharded(rank: Rank) -> nn.Module:
    """FSDP2 over the two processes: `hidden` a group of its own, the others with the root."""
    model = TokenNet().double()
    if rank is not None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model.hidden, mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert all(hasattr(p, "to_local") for p in model.parameters())
    return model


def many_sharded_tasks(rank: Rank, optimizer_name: str, aperture: Any) -> State:
    """One optimizer per task, and an evaluation before `remember`.

    After a forward pass without a backward pass FSDP2 leaves the root's parameters gathered:
    `model.parameters()` are then other tensors than those of the optimizer.
    """
    model = sharded(rank)
    parameters = list(model.parameters())
    shield = Shield(model, aperture, increment_decay=0.0 if aperture == "auto" else 0.05)
    old, new = old_and_new(rank)
    for task in (old, new, old.flip(0), new):
        optimizer = shield.guard(OPTIMIZERS[optimizer_name](parameters))
        train(model, optimizer, task, 5)
        with torch.no_grad():
            model(task)
        shield.remember([task])
    return state_of(model, shield)


@by_aperture
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fsdp_is_one_unsharded_process(pair: Pair, optimizer: str, aperture: Any) -> None:
    """With "auto" weights are pulled back as well, each rank's own rows."""
    agree(pair, many_sharded_tasks, optimizer, aperture)


def middle_of_a_task(rank: Rank, aperture: Any) -> tuple[Tensors, dict[str, Any]]:
    """The weights at the end of the second task, and the state of a run three steps into it."""
    model = sharded(rank)
    shield = Shield(model, aperture)
    optimizer = shield.guard(OPTIMIZERS["momentum"](model.parameters()))
    old, new = old_and_new(rank)
    train(model, optimizer, old, 3)
    shield.remember([old])
    train(model, optimizer, new, 3)
    velocity = {name: optimizer.state[p]["momentum_buffer"] for name, p in model.named_parameters()}
    momentum = {n: getattr(v, "full_tensor", v.clone)() for n, v in velocity.items()}
    weights = state_of(model, shield)["weights"]
    state = {"weights": weights, "shield": shield.state_dict(), "momentum": momentum}
    train(model, optimizer, new, 3)
    return state_of(model, shield)["weights"], state


def resumed(rank: Rank, aperture: Any, file: Path) -> Tensors:
    """The same weights by a model that loads the state."""
    from conceptors._internal.distributed import cut_like

    state = torch.load(file)
    model = sharded(rank)
    shield = Shield(model, aperture)
    optimizer = shield.guard(OPTIMIZERS["momentum"](model.parameters()))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(cut_like(state["weights"][name], p.data))
            velocity = cut_like(state["momentum"][name], p.data)
            optimizer.state[p]["momentum_buffer"] = velocity
    shield.load_state_dict(state["shield"])
    train(model, optimizer, old_and_new(rank)[1], 3)
    return state_of(model, shield)["weights"]


@by_aperture
def test_fsdp_resumes_on_any_number_of_ranks(pair: Pair, aperture: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    alone, from_one = middle_of_a_task(None, aperture)
    (first, from_two), _ = pair(middle_of_a_task, aperture)
    torch.save(from_one, one)
    torch.save(from_two, two)
    for weights in pair(resumed, aperture, two):
        assert difference(weights, first) == 0  # bit for bit
    for weights in (*pair(resumed, aperture, one), resumed(None, aperture, two)):
        assert difference(weights, alone) < 1e-8


def cut_by_columns(rank: int) -> None:
    """Tensor parallelism that cuts a layer's inputs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"1": RowwiseParallel()})
    with pytest.raises(ValueError, match=r"1\.weight[^\n]*sharded by rows") as error:
        Shield(model)
    assert "its weights have placements (Shard(dim=1),)" in str(error.value)


def test_weights_cut_by_columns_are_refused(pair: Pair) -> None:
    pair(cut_by_columns)
