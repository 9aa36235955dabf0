"""The benchmarks run, at tiny size and without timing, and agree with what they compare to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not (ROOT / "benchmarks").exists(), reason="no benchmarks beside the tests")
def test_benchmarks_run(tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    command = "-m pytest -q benchmarks --small -p no:cacheprovider"
    # one of `conceptors bench` is enough: tests/bench runs them all
    chosen = "not test_performance or step-minilm"
    found = subprocess.run(
        [sys.executable, *command.split(), f"--table={table}", "-k", chosen],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    written = table.read_text(encoding="utf-8")
    assert "| peak memory of OR, float64" in written
    assert "| step-minilm" in written
    assert written.startswith("torch ")
    assert "passed" in found.stdout
    assert "skipped" not in found.stdout
