"""Two gloo processes that run cases: functions of the rank and of further arguments."""

import io
import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

Case = Callable[..., Any]

PATIENCE = 150  # seconds, of which starting takes many on a busy machine


class Pair:
    """Two processes of one process group that run cases, started when first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts = 0
        self._workers: list[Any] = []
        self._pipes: list[Any] = []

    def __call__(self, case: Case, *args: Any) -> list[Any]:
        """Return the results of the case on rank 0 and on rank 1."""
        if not self._workers:
            self._start()
        for pipe in self._pipes:
            pipe.send((case, args))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            succeeded, value = False, f"no answer within {PATIENCE} s"
            if pipe.poll(PATIENCE):
                succeeded, value = torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
            if not succeeded:
                self.stop()
                pytest.fail(f"rank {rank} failed:\n{value}")
            answers.append(value)
        return answers

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._starts += 1
        store = str(self._folder / f"store{self._starts}")
        for rank in range(2):
            pipe, end = context.Pipe()
            worker = context.Process(target=serve, args=(rank, store, end), daemon=True)
            worker.start()
            end.close()
            self._pipes.append(pipe)
            self._workers.append(worker)

    def stop(self) -> None:
        for worker, pipe in zip(self._workers, self._pipes):
            worker.terminate()
            worker.join()
            pipe.close()
        self._workers, self._pipes = [], []


def serve(rank: int, store: str, pipe: Any) -> None:
    """Join the group, then run cases until the process is ended."""
    torch.set_num_threads(1)
    patience = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", f"file://{store}", patience, world_size=2, rank=rank)
    while True:
        case, args = pipe.recv()
        torch.manual_seed(0)  # as before every test
        try:
            answer = (True, case(rank, *args))
        except Exception:
            answer = (False, traceback.format_exc())
        buffer = io.BytesIO()
        torch.save(answer, buffer)
        pipe.send_bytes(buffer.getvalue())
