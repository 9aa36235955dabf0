"""A shield under torchrun: two processes with half of the data each compute the same conceptors.

`remember` sums second moments over all processes. Every process has to call it, even one without
data.
Run with: torchrun --nproc-per-node 2 examples/torchrun_ddp.py
As a single process: python examples/torchrun_ddp.py
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

EPOCHS, BATCH = 20, 32  # each batch is divided among all processes
torch.set_num_threads(1)  # fastest for such a small network


def main() -> None:
    distributed = "RANK" in os.environ  # torchrun sets it
    if distributed:
        dist.init_process_group("gloo")
    learn(distributed)
    if distributed:
        gc.collect()  # the wrapped model must be freed before its process group
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
            # all processes draw the same order; each uses its part of every batch
            for batch in torch.randperm(len(x)).split(BATCH)[:-1]:
                local = batch[rank::world]
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[local]), target[local]).backward()
                optimizer.step()
        shield.remember(x[rank::world])

    is_correct = (net(X).argmax(1) == y).float()
    old, new = (100 * float(is_correct[task & test].mean()) for task in (y < 5, y >= 5))
    conceptor_spread = spread([c.matrix() for c in shield.conceptors().values()])
    weight_spread = spread(list(net.parameters()))
    if rank == 0:
        print(f"processes: {world}, each with a part of the data")
        print(f"largest difference between their conceptors: {conceptor_spread:.1e}")
        print(f"largest difference between their weights:    {weight_spread:.1e}")
        for name, quota in shield.quota().items():
            print(f"quota of layer {name}: {quota:.3f}")
        print(f"test accuracy after both tasks: digits 0-4 {old:.1f} %, digits 5-9 {new:.1f} %")


def spread(tensors: list[Tensor]) -> float:
    """Compute the largest difference between any process and the first."""
    local = torch.cat([tensor.detach().flatten().double() for tensor in tensors])
    first = local.clone()
    if dist.is_initialized():
        dist.broadcast(first, 0)
    largest = (local - first).abs().max()
    if dist.is_initialized():
        dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


if __name__ == "__main__":
    main()
