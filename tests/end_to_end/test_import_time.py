"""Importing the library takes little longer than importing torch."""

from __future__ import annotations

import compileall
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import conceptors

MOST = 0.15  # seconds beyond torch's own

# Time of the processor, not of the clock: other programs may be at work.
CODE = """
import time
import torch
before = time.process_time()
import conceptors
from conceptors import Conceptor, Readout, Shield, similarity  # names are loaded on first use
print(time.process_time() - before)
"""


def test_import_adds_little_to_torch(tmp_path: Path) -> None:
    # A copy that is compiled, as an installation is.
    copy = shutil.copytree(Path(conceptors.__file__).parent, tmp_path / "conceptors")
    assert compileall.compile_dir(copy, quiet=2)
    env = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def added() -> float:
        command = [sys.executable, "-c", CODE]
        return float(subprocess.check_output(command, cwd=tmp_path, env=env, timeout=120))

    assert statistics.median(added() for _ in range(3)) <= MOST
