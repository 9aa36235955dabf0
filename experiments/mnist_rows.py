"""How long one method takes for all MNIST rows of the comparison, ten seeds each, on one machine.

    python experiments/mnist_rows.py --method cab --device cuda

The row of a hundred tasks moves large matrices, the others wait for many small ones: processes work
side by side, one for that row and two for the others. On one GPU they need its multi-process
service (`nvidia-cuda-mps-control -d`) to compute at the same time; the long row's large kernels go
behind the small ones then, which would wait for them otherwise. Everything is learned anew, in a
folder of its own; the time is that of the whole, with starting, loading and tests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.machine import environment, find_device
from conceptors.experiments.results import Results

LONGEST = "permuted-mnist-100"
PERMUTED = [name for name in BENCHMARKS if name.startswith("permuted") and name != LONGEST]
DISJOINT = [name for name in BENCHMARKS if name.startswith("disjoint")]
ROWS = [LONGEST, *PERMUTED, *DISJOINT]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--method", default="cab")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--in-turn", action="store_true", help="one process, row by row")
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    shares = [ROWS] if given.in_turn else [[LONGEST], PERMUTED, DISJOINT]
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing)
        command = [sys.executable, "-m", "conceptors", "all", "--shared", "--quiet"]
        command += ["--seeds", str(given.seeds), "--methods", given.method]
        command += ["--device", given.device, "--out", str(folder)]
        begun = time.perf_counter()
        started = [
            subprocess.Popen([*command, "--rows", *share], env=priority(below=share == [LONGEST]))
            for share in shares
        ]
        try:
            ended = wait(started)
        finally:  # Ctrl-C: nobody is to write into a folder that is gone
            for process in started:
                process.kill()
        seconds = time.perf_counter() - begun
        rows = {row: summary(folder, row, given.method) for row in ROWS}
    record = {
        "method": given.method,
        "seeds": given.seeds,
        "seconds": round(seconds, 1),
        "seconds of processes": [round(end - begun, 1) for end in ended],
        "accuracy": rows,
        "environment": environment(find_device(given.device)),
    }
    each = ", ".join(f"{end - begun:.0f}" for end in ended)
    print(f"{given.method}, {given.seeds} seeds of {len(rows)} rows: {seconds:.1f} s ({each})")
    for row, found in rows.items():
        what = (
            f"{found['mean']:7.2f} ± {found['std']:.2f}, {found['n']} seeds" if found else "failed"
        )
        print(f"  {row:<24}{what}")
    if given.out and any(rows.values()):  # else an older file may be the better one
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return int(any(process.returncode for process in started))


def priority(below: bool) -> dict[str, str]:
    """The environment of a process whose kernels go behind those of others, or do not."""
    return {**os.environ, "CUDA_MPS_CLIENT_PRIORITY": str(int(below))}


def wait(started: list[subprocess.Popen[bytes]]) -> list[float]:
    """When each process ended."""
    ended: dict[int, float] = {}
    while len(ended) < len(started):
        for number, process in enumerate(started):
            if number not in ended and process.poll() is not None:
                ended[number] = time.perf_counter()
        time.sleep(0.05)
    return [ended[number] for number in range(len(started))]


def summary(folder: Path, row: str, method: str) -> dict[str, Any] | None:
    """Mean and standard deviation of a row's test accuracy, and of how many seeds."""
    path = folder / row / "results.json"
    found = Results.read(path).summary.get(method) if path.exists() else None
    if found is None:
        return None
    return {"mean": round(found["mean"], 2), "std": round(found["std"], 2), "n": found["n"]}


if __name__ == "__main__":
    sys.exit(main())
