"""Training that survives crashes: run the same command again and it resumes.

Two tasks with DistributedDataParallel, or with FSDP2 (--shard). Every ten steps model, optimizer
and shield are written to one file, which replaces the previous one when it is complete. A resumed
run ends with the same weights as an uninterrupted one.
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

TASKS, BATCH = 2, 64  # each batch is divided among all processes
SAVE_EVERY = 10  # steps
TIMEOUT = timedelta(minutes=2)  # for processes that do not answer; longer than any step takes


def data(task: int) -> tuple[Tensor, Tensor]:
    """Draw samples `[512, 32]` in a six-dimensional subspace per task, with four classes."""
    draw = torch.Generator().manual_seed(task)
    hidden = torch.randn(512, 6, generator=draw)
    x = hidden @ torch.randn(6, 32, generator=draw)
    return x, (hidden @ torch.randn(6, 4, generator=draw)).argmax(1)


def batch_of(task: int, step: int) -> Tensor:
    """Choose the samples of a step by its number alone, so a resumed run repeats them."""
    draw = torch.Generator().manual_seed(10_000 * task + step)
    return torch.randperm(512, generator=draw)[:BATCH]


class Run:
    """A model after `task` tasks and `step` steps of the next one."""

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
                local = batch_of(self.task, self.step)[self.rank :: self.world]
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x[local]), y[local]).backward()
                self.optimizer.step()
                self.step += 1
                if self.step % SAVE_EVERY == 0 or self.step == self.steps:
                    self.save()
            self.shield.remember(x[self.rank :: self.world])
            self.task, self.step = self.task + 1, 0
            self.save()

    def save(self) -> None:
        """Write a complete file or none: all processes gather the state, the first one writes."""
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
        """Load the file if it exists: model and optimizer first, then the shield."""
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
            accuracy = 100 * float((self.model(x).argmax(1) == y).float().mean())
            if self.rank == 0:
                print(f"task {task}: {accuracy:.1f} % correct", flush=True)


def sharded(net: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return net


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Learn two tasks, and resume after a crash.")
    parser.add_argument("folder", type=Path, help="where to save; all machines must see it")
    parser.add_argument("--steps", type=int, default=60, help="steps per task")
    parser.add_argument("--shard", action="store_true", help="use FSDP2 instead of DDP")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # fastest for such a small network

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("torchrun ends the other processes"))
    dist.init_process_group("gloo", timeout=TIMEOUT)
    run = Run(options.folder, options.steps, options.shard)
    try:
        run.resume()
        run.learn()
        run.report()
    except (Exception, SystemExit) as error:
        print(
            f"rank {run.rank} stops in task {run.task} after step {run.step}: {error}\n"
            f"Run the same command again to resume from the file in {options.folder}.",
            file=sys.stderr,
            flush=True,
        )
        if isinstance(error, Exception):
            time.sleep(2)  # torchrun reports the first process that ends: the one that died
        raise
    del run
    gc.collect()  # the wrapped model must be freed before its process group
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
