"""Runs of examples/torchrun_resume.py in which one process is killed, by torchrun's own agent.

Processes are forked from this one, which saves each of them the seconds of importing torch.
Usage: python interrupted.py FOLDER SEED [--shard]
"""

from __future__ import annotations

import io
import os
import random
import runpy
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_resume.py"
STEPS = 24
PROGRAM = runpy.run_path(str(EXAMPLE))


class Moment:
    """Kill this process when it reaches something for the `count`th time."""

    def __init__(self, kind: str, count: int, folder: Path) -> None:
        self.countdown, self.folder, self.save = count, folder, torch.save
        if kind == "step":
            register_optimizer_step_post_hook(self)
        if kind == "remember":
            register_module_forward_hook(self.in_forward)
        if kind == "saving":
            torch.save = self.in_saving  # type: ignore[assignment]

    def __call__(self, *_: Any) -> None:
        self.countdown -= 1
        if not self.countdown:
            (self.folder / "killed").write_text(f"{os.environ['RANK']} {time.time()}")
            os.kill(os.getpid(), signal.SIGKILL)

    def in_forward(self, *_: Any) -> None:
        if not torch.is_grad_enabled():  # as when a task is remembered
            self()

    def in_saving(self, state: Any, file: Any) -> None:
        """Half of a file is written when the process dies."""
        buffer = io.BytesIO()
        self.save(state, buffer)
        data = buffer.getvalue()
        file.write(data[: len(data) // 2])
        file.flush()
        self()
        file.write(data[len(data) // 2 :])


def work(folder: Path, options: list[str], kind: str, count: int, victim: int) -> None:
    """One process of a run."""
    if kind and int(os.environ["RANK"]) == victim:
        Moment(kind, count, folder)
    PROGRAM["main"]([str(folder), "--steps", str(STEPS), *options])


def launch(
    folder: Path, options: list[str], kind: str = "", count: int = 0, victim: int = 0
) -> None:
    """Run two processes; print how long the run took to end after the kill, and the report."""
    folder.mkdir(exist_ok=True)
    config = LaunchConfig(
        *(1, 1, 2),  # nodes at least and at most, processes
        run_id=f"{folder.name}{kind}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        monitor_interval=0.1,
        max_restarts=0,
        start_method="fork",
    )
    try:
        elastic_launch(config, work)(folder, options, kind, count, victim)
    except ChildFailedError as error:
        rank, moment = (folder / "killed").read_text().split()
        print(f"rank {rank} was killed; the run ended {time.time() - float(moment):.1f} s later")
        print(error, flush=True)


def main(folder: Path, seed: int, *options: str) -> None:
    import_module("torch._dynamo")  # once for all that are forked from here
    import_module("torch.distributed.checkpoint.state_dict")
    draw = random.Random(seed)
    print("--- whole", flush=True)
    launch(folder / "whole", list(options))
    moments = {
        "step": (draw.randint(PROGRAM["SAVE_EVERY"] + 1, 2 * STEPS), draw.randint(0, 1)),
        "remember": (draw.randint(1, 8), draw.randint(0, 1)),
        "saving": (draw.randint(1, 8), 0),  # by the first process
    }
    for kind, (count, victim) in moments.items():
        print(f"--- {kind} {count}", flush=True)
        launch(folder / kind, list(options), kind, count, victim)
        print("... resumed", flush=True)
        launch(folder / kind, list(options))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
