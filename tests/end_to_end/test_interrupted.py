"""A killed process ends the run at once, with a message; a restart loses nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "torchrun_resume.py"

pytestmark = [
    pytest.mark.skipif(not EXAMPLE.exists(), reason="the examples are in the checkout"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked and found in /proc"),
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="torch without gloo"
    ),
]
PROMPT = 30.0  # seconds; it takes less than one where the machine is free


def tensors(state: Any, path: str = "") -> dict[str, Tensor]:
    """All tensors and numbers of a nested state."""
    if isinstance(state, (dict, list, tuple)):
        pairs = state.items() if isinstance(state, dict) else enumerate(state)
        return {n: t for key, part in pairs for n, t in tensors(part, f"{path}/{key}").items()}
    return {path: torch.as_tensor(state)} if isinstance(state, (Tensor, int, float)) else {}


def check_resumed(folder: Path, seed: int, *options: str) -> None:
    """Killed in a step, in `remember` and in saving, then resumed: as if nothing had happened."""
    command: list[Any] = [sys.executable, HERE / "interrupted.py", folder, str(seed), *options]
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
