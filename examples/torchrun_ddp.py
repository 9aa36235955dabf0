"""The shield under torchrun: two processes, each with half of the data, and the same conceptors.

`remember` sums the second moments over all processes, so every process computes the same
conceptors. All processes have to call it, also one that has no data.
Run with: torchrun --nproc-per-node 2 examples/torchrun_ddp.py
It also runs as a single process: python examples/torchrun_ddp.py
"""

from __future__ import annotations

import gc
import os

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conceptors import Shield

EPOCHS, BATCH = 20, 32  # a batch is shared by all processes
torch.set_num_threads(1)  # the fastest for so small a network


def main() -> None:
    distributed = "RANK" in os.environ  # torchrun sets it
    if distributed:
        dist.init_process_group("gloo")
    learn(distributed)
    if distributed:
        gc.collect()  # the wrapped model goes before the process group it uses
        dist.barrier()
        dist.destroy_process_group()


def learn(distributed: bool) -> None:
    rank, world = (dist.get_rank(), dist.get_world_size()) if distributed else (0, 1)
    X, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    X = X.float() / 16  # [1797, 64]
    test = torch.arange(len(X)) % 4 == 0

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    model: nn.Module = DistributedDataParallel(net) if distributed else net
    shield = Shield(model)
    optimizer = shield.guard(torch.optim.SGD(model.parameters(), lr=0.5))
    for task in (y < 5, y >= 5):
        x, target = X[task & ~test], y[task & ~test]
        for _ in range(EPOCHS):
            # the same order everywhere; each process takes its part of every batch
            for batch in torch.randperm(len(x)).split(BATCH)[:-1]:
                mine = batch[rank::world]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[mine]), target[mine]).backward()
                optimizer.step()
        shield.remember(x[rank::world])

    right = (net(X).argmax(1) == y).float()
    old, new = (100 * float(right[part & test].mean()) for part in (y < 5, y >= 5))
    apart = spread([c.matrix() for c in shield.conceptors().values()])
    drift = spread(list(net.parameters()))
    if rank == 0:
        print(f"processes: {world}, each with a part of the data")
        print(f"largest difference between their conceptors: {apart:.1e}")
        print(f"largest difference between their weights:    {drift:.1e}")
        for name, quota in shield.quota().items():
            print(f"quota of layer {name}: {quota:.3f}")
        print(f"test accuracy after both tasks: digits 0-4 {old:.1f} %, digits 5-9 {new:.1f} %")


def spread(tensors: list[Tensor]) -> float:
    """The largest difference between any process and the first."""
    mine = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
    first = mine.clone()
    if dist.is_initialized():
        dist.broadcast(first, 0)
    worst = (mine - first).abs().max()
    if dist.is_initialized():
        dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


if __name__ == "__main__":
    main()
