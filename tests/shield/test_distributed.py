"""Two gloo processes: every rank holds the same conceptors, and they are those of one process.

A case is a function of the rank; with rank None it is the same work done by one process on all
data, which is what the two processes have to agree with.
"""

from __future__ import annotations

import io
import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conceptors import Shield

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)

Rank = int | None
Case = Callable[..., Any]

# Known faults, to be run again when they are mended.

PATIENCE = 60  # seconds for a case; a deadlock must not stop the test run


class Pair:
    """Two processes of one process group that run cases, started when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts = 0
        self._workers: list[Any] = []
        self._pipes: list[Any] = []

    def __call__(self, case: Case, *args: Any) -> list[Any]:
        """What the case returns on rank 0 and on rank 1."""
        if not self._workers:
            self._start()
        for pipe in self._pipes:
            pipe.send((case, args))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(PATIENCE):
                self.stop()
                pytest.fail(f"rank {rank} did not answer within {PATIENCE} s")
            fine, value = torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
            if not fine:
                self.stop()
                pytest.fail(f"rank {rank} failed:\n{value}")
            answers.append(value)
        return answers

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._starts += 1
        store = self._folder / f"store{self._starts}"
        for rank in range(2):
            here, there = context.Pipe()
            worker = context.Process(target=serve, args=(rank, str(store), there), daemon=True)
            worker.start()
            there.close()
            self._pipes.append(here)
            self._workers.append(worker)

    def stop(self) -> None:
        for worker in self._workers:
            worker.terminate()
            worker.join()
        for pipe in self._pipes:
            pipe.close()
        self._workers, self._pipes = [], []


def serve(rank: int, store: str, pipe: Any) -> None:
    """The life of one process: join the group, then run cases until the end."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=PATIENCE),
    )
    while True:
        case, args = pipe.recv()
        try:
            answer = (True, case(rank, *args))
        except Exception:
            answer = (False, traceback.format_exc())
        buffer = io.BytesIO()
        torch.save(answer, buffer)
        pipe.send_bytes(buffer.getvalue())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    found = Pair(tmp_path_factory.mktemp("pair"))
    yield found
    found.stop()


# --- DistributedDataParallel ------------------------------------------------------------------


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


def part(x: Tensor, rank: Rank) -> Tensor:
    """What a rank sees of the data: every second sample, or everything if it is alone."""
    return x if rank is None else x[rank::2]


def wrapped(model: nn.Module, rank: Rank) -> nn.Module:
    return model if rank is None else DistributedDataParallel(model)


def matrices(shield: Shield) -> dict[str, Tensor]:
    return {name: conceptor.matrix() for name, conceptor in shield.conceptors().items()}


def weights(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        value: Any = parameter.detach()
        found[name] = (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
    return found


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


def largest_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
}


APERTURES: dict[str, Any] = {"number": 20.0, "auto": "auto"}


def two_tasks(rank: Rank, optimizer_name: str, hard: bool, aperture: Any = 30.0) -> dict[str, Any]:
    """Learn, remember, learn again under DDP; 33 samples, so that rank 0 sees one more."""
    inner = convnet()
    model = wrapped(inner, rank)
    shield = Shield(model, aperture, hard=hard, rows=None, warn_at_quota=1.0)
    optimizer = shield.guard(OPTIMIZERS[optimizer_name](model.parameters()))
    old, new = images(1, 33), images(2, 24)
    train(model, optimizer, part(old[:32], rank), 5)
    shield.remember(part(old, rank).split(5))
    train(model, optimizer, part(new, rank), 20)
    return {
        "unwrapped": shield.model is inner,
        "conceptors": matrices(shield),
        "weights": weights(inner),
    }


@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_ddp_is_one_process_on_all_data(pair: Pair, optimizer: str, hard: bool) -> None:
    alone = two_tasks(None, optimizer, hard)
    first, second = pair(two_tasks, optimizer, hard)
    assert first["unwrapped"]
    # not to rounding but to the last bit: ranks that drift apart never meet again
    assert largest_difference(first["conceptors"], second["conceptors"]) == 0
    assert largest_difference(first["weights"], second["weights"]) == 0
    assert largest_difference(first["conceptors"], alone["conceptors"]) < 1e-8
    assert largest_difference(first["weights"], alone["weights"]) < 1e-8


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_ddp_pulls_as_one_process_on_all_data(pair: Pair, optimizer: str) -> None:
    """By energies of samples that are summed over the ranks."""
    alone = two_tasks(None, optimizer, False, "auto")
    first, second = pair(two_tasks, optimizer, False, "auto")
    assert largest_difference(first["weights"], second["weights"]) == 0
    assert largest_difference(first["conceptors"], alone["conceptors"]) < 1e-8
    assert largest_difference(first["weights"], alone["weights"]) < 1e-8


def protection(rank: Rank, shielded: bool) -> float:
    """How far the outputs on the first task move while the second is learned, relative."""
    inner = convnet()
    model = wrapped(inner, rank)
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    old, new = images(1, 32), images(2, 32)
    if shielded:
        shield = Shield(model, aperture=1e4, hard=True)
        shield.guard(optimizer)
        shield.remember([part(old, rank)])
    before = inner(old).detach()
    train(model, optimizer, part(new, rank), 30)
    return float((inner(old).detach() - before).norm() / before.norm())


def test_ddp_training_is_protected(pair: Pair) -> None:
    moved = pair(protection, True)
    forgot = pair(protection, False)
    assert max(moved) < 1e-10
    assert min(forgot) > 0.1


def sampled_rows(rank: Rank) -> dict[str, Tensor]:
    """More rows than are used: each rank draws from its own."""
    model = wrapped(convnet(), rank)
    shield = Shield(model, aperture=10.0, rows=20)
    shield.remember(part(images(3, 64), rank).split(16))
    return matrices(shield)


def test_ddp_ranks_agree_on_sampled_rows(pair: Pair) -> None:
    first, second = pair(sampled_rows)
    assert largest_difference(first, second) == 0


def sketched(rank: Rank, optimizer_name: str) -> dict[str, Any]:
    """Layers too wide for d x d matrices: sketches are merged instead of sums."""
    inner = convnet()
    model = wrapped(inner, rank)
    # tasks lie in 8 dimensions and a layer keeps 12, so that the sketch loses nothing
    shield = Shield(model, aperture=30.0, dense_limit=20, rank=12, rows=None, warn_at_quota=1.0)
    optimizer = shield.guard(OPTIMIZERS[optimizer_name](model.parameters()))
    old, new = images(1, 10), images(2, 24)
    shield.remember(part(old, rank).split(3))
    train(model, optimizer, part(new, rank), 5)
    return {"conceptors": matrices(shield), "weights": weights(inner)}


def test_ddp_ranks_agree_on_sketches(pair: Pair) -> None:
    alone = sketched(None, "adamw")
    first, second = pair(sketched, "adamw")
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


def test_ddp_empty_loaders_are_refused(pair: Pair) -> None:
    for message in pair(refused, "empty"):
        assert "nothing was remembered" in message


def test_ddp_an_error_on_one_rank_is_an_error_on_all(pair: Pair) -> None:
    first, second = pair(refused, "nan on rank 0")
    assert "NaN" in first
    assert "nothing was remembered" in second


# --- FSDP2 ------------------------------------------------------------------------------------
# A forward pass gathers weights from all ranks, so that with FSDP2, unlike DDP, every rank needs
# as many batches as the others in `remember` (as in training).


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
