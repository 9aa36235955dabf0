"""Programs of this folder, started as users start theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import distributed as dist

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"


def start(program: Path, *arguments: object, processes: int = 1) -> str:
    """What a program prints, run alone or by torchrun with several processes."""
    launcher: list[str] = []
    if processes > 1:
        if not (dist.is_available() and dist.is_gloo_available()):
            pytest.skip("torch was built without gloo")
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = subprocess.run(
        [sys.executable, *launcher, str(program), *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout
