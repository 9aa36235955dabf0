"""Training that survives the death of a process: start the same command again and it resumes.

Two tasks, with DistributedDataParallel, or with --shard by FSDP2. Every few steps model, optimizer
and shield are written to one file, which replaces the previous one when it is complete. A resumed
run ends with the same weights as one that was never interrupted.
Run with: torchrun --nproc-per-node 2 examples/torchrun_resume.py runs
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from conceptors import Shield

TASKS, BATCH, EVERY = 2, 64, 10  # a batch is shared by all processes; saved every 10 steps
PATIENCE = timedelta(minutes=2)  # with processes that do not answer; more than any of them computes


def data(task: int) -> tuple[Tensor, Tensor]:
    """Samples `[512, 32]` in a six-dimensional space per task, and four classes."""
    draw = torch.Generator().manual_seed(task)
    hidden = torch.randn(512, 6, generator=draw)
    x = hidden @ torch.randn(6, 32, generator=draw)
    return x, (hidden @ torch.randn(6, 4, generator=draw)).argmax(1)


def batch_of(task: int, step: int) -> Tensor:
    """The samples of a step; they depend on its number alone, so a restart repeats them."""
    draw = torch.Generator().manual_seed(10_000 * task + step)
    return torch.randperm(512, generator=draw)[:BATCH]


class Run:
    """A model in training after `task` tasks and `step` steps of the next."""

    def __init__(self, folder: Path, steps: int, shard: bool) -> None:
        self.file, self.steps, self.task, self.step = folder / "run.pt", steps, 0, 0
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4))
        self.model = sharded(net) if shard else DistributedDataParallel(net)
        self.shield = Shield(self.model)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.optimizer = self.shield.guard(optimizer)

    def learn(self) -> None:
        """Learn the remaining tasks."""
        while self.task < TASKS:
            x, y = data(self.task)
            while self.step < self.steps:
                mine = batch_of(self.task, self.step)[self.rank :: self.world]
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x[mine]), y[mine]).backward()
                self.optimizer.step()
                self.step += 1
                if self.step % EVERY == 0 or self.step == self.steps:
                    self.save()
            self.shield.remember(x[self.rank :: self.world])
            self.task, self.step = self.task + 1, 0
            self.save()

    def save(self) -> None:
        """Write everything or nothing. All processes gather, the first one writes."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=whole)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        state |= {"shield": self.shield.state_dict(), "task": self.task, "step": self.step}
        if self.rank == 0:
            part = self.file.with_suffix(".part")
            with part.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.file)
            print(f"saved: task {self.task}, step {self.step}", flush=True)

    def resume(self) -> None:
        """Load the file if there is one; the shield last."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        if not self.file.exists():
            return
        state = torch.load(self.file, map_location="cpu")
        states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(self.model, self.optimizer, **states, options=options)
        self.shield.load_state_dict(state["shield"])
        self.task, self.step = state["task"], state["step"]
        if self.rank == 0:
            print(f"resumed: task {self.task}, step {self.step}", flush=True)

    @torch.no_grad()
    def report(self) -> None:
        """Print the training accuracy of every task."""
        for task in range(TASKS):
            x, y = data(task)
            right = 100 * float((self.model(x).argmax(1) == y).float().mean())
            if self.rank == 0:
                print(f"task {task}: {right:.1f} % right", flush=True)


def sharded(net: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return net


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Learn two tasks, and resume after a crash.")
    parser.add_argument("folder", type=Path, help="that all machines see")
    parser.add_argument("--steps", type=int, default=60, help="of each task")
    parser.add_argument("--shard", action="store_true", help="FSDP2 in place of DDP")
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the fastest for so small a network

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("torchrun ends the other processes"))
    dist.init_process_group("gloo", timeout=PATIENCE)
    run = Run(given.folder, given.steps, given.shard)
    try:
        run.resume()
        run.learn()
        run.report()
    except (Exception, SystemExit) as error:
        print(
            f"rank {run.rank} stops in task {run.task} after step {run.step}: {error}\n"
            f"Start the same command again: it resumes from what is saved in {given.folder}",
            file=sys.stderr,
            flush=True,
        )
        if isinstance(error, Exception):
            time.sleep(2)  # torchrun reports who ends first: let that be the one that died
        raise
    del run
    gc.collect()  # the wrapped model goes before the process group it uses
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
