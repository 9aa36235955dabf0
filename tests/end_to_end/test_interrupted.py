"""A killed process ends the run at once, with a message; a restart loses nothing.

As a program, `test_interrupted.py FOLDER SEED [--shard]`, this runs examples/torchrun_resume.py and
kills one process, by torchrun's own agent. Processes are forked from it, which saves each of them
the seconds of importing torch.
"""

import io
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_resume.py"

pytestmark = [
    pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in the checkout"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and found in /proc"),
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo"
    ),
]
STEPS = 24
PROMPT = 30.0  # seconds; it takes less than one where the machine is free


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
    runpy.run_path(str(EXAMPLE))["main"]([str(folder), "--steps", str(STEPS), *options])


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
        "step": (draw.randint(11, 2 * STEPS), draw.randint(0, 1)),
        "remember": (draw.randint(1, 8), draw.randint(0, 1)),
        "saving": (draw.randint(1, 8), 0),  # by the first process
    }
    for kind, (count, victim) in moments.items():
        print(f"--- {kind} {count}", flush=True)
        launch(folder / kind, list(options), kind, count, victim)
        print("... resumed", flush=True)
        launch(folder / kind, list(options))


def tensors(state: Any, path: str = "") -> dict[str, Tensor]:
    """All tensors and numbers of a nested state."""
    if isinstance(state, (dict, list, tuple)):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        return {n: t for key, part in pairs for n, t in tensors(part, f"{path}/{key}").items()}
    return {path: torch.as_tensor(state)} if isinstance(state, (Tensor, int, float)) else {}


def check_resumed(folder: Path, seed: int, *options: str) -> None:
    """Killed in a step, in `remember` and in saving, then resumed: as if nothing had happened."""
    command: list[Any] = [sys.executable, __file__, folder, str(seed), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    run = subprocess.run(command, text=True, env=env, check=False, **output)
    assert run.returncode == 0, run.stdout
    whole, *killed = run.stdout.split("--- ")[1:]
    accuracies = re.findall(r"task \d: [\d.]+ % correct", whole)
    assert len(accuracies) == 2
    expected = tensors(torch.load(folder / "whole" / "run.pt"))
    assert len(killed) == 3
    for section in killed:
        kind, count = section.split()[:2]
        before, after = section.split("... resumed")
        rank, seconds = re.findall(r"rank (\d) was killed; the run ended ([\d.]+) s", before)[0]
        assert float(seconds) < PROMPT
        assert re.search(rf"rank +: {rank} .*\n.*SIGKILL", before), before  # torchrun's report
        other = 1 - int(rank)
        if kind != "saving":  # by one process, while the other may be done
            assert f"rank {other} stops in task" in before
            assert "Run the same command again to resume" in before
            assert ("remember on rank" in before) <= (kind == "remember")
        saved = re.findall(r"saved: task (\d), step (\d+)", before)
        assert re.findall(r"resumed: task (\d), step (\d+)", after) == saved[-1:]
        if kind == "remember":
            assert saved[-1] == (str((int(count) - 1) // 4), "24")  # the task is learned
        assert re.findall(r"task \d: [\d.]+ % correct", after) == accuracies
        found = tensors(torch.load(folder / kind / "run.pt"))
        assert found.keys() == expected.keys()
        apart = [name for name in found if not torch.equal(found[name], expected[name])]
        assert not apart  # weights, moments of the optimizer, and all that the shield holds
    assert any(name.startswith("/shield/tensors/claimed/0") for name in expected)


def test_a_run_that_was_killed_resumes_bit_for_bit(tmp_path: Path) -> None:
    check_resumed(tmp_path, 5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [[], ["--shard"]], ids=["DDP", "FSDP2"])
def test_more_runs_that_were_killed(tmp_path: Path, options: list[str], seed: int) -> None:
    check_resumed(tmp_path, seed, *options)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
