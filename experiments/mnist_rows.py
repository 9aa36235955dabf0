"""How long one method takes for all MNIST rows of the comparison, ten seeds each, on one machine.

    python experiments/mnist_rows.py --method cab --device cuda

The row of a hundred tasks moves large matrices, the others wait for many small ones: two processes
work side by side, one for that row and one for all others. On one GPU they need its multi-process
service (`nvidia-cuda-mps-control -d`) to compute at the same time. With `--split 70` that service
gives the first so many percent of the GPU's processors and the second the others; whether that is
faster is not known yet. Everything is learned anew, in a folder of its own; the time is that of the
whole, with starting, loading and tests.
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
OTHERS = [name for name in BENCHMARKS if "cifar" not in name and name != LONGEST]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--method", default="cab")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--in-turn", action="store_true", help="one process, row by row")
    parser.add_argument(
        "--split", type=int, default=0, metavar="PERCENT", help="of the GPU for the longest row"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the numbers")
    given = parser.parse_args()
    if not 0 <= given.split < 100:
        parser.error(f"--split must be a percentage from 1 to 99, got {given.split}")
    if given.split and (given.in_turn or find_device(given.device).type != "cuda"):
        parser.error("--split is for two processes on one GPU")
    shares = [[LONGEST, *OTHERS]] if given.in_turn else [[LONGEST], OTHERS]
    with tempfile.TemporaryDirectory() as passing:
        folder = Path(passing)
        command = [sys.executable, "-m", "conceptors", "all", "--shared", "--quiet"]
        command += ["--seeds", str(given.seeds), "--methods", given.method]
        command += ["--device", given.device, "--out", str(folder)]
        begun = time.perf_counter()
        started = [
            subprocess.Popen([*command, "--rows", *share], env=limited(percent))
            for share, percent in zip(shares, (given.split, 100 - given.split))
        ]
        try:
            codes = [process.wait() for process in started]
        finally:  # Ctrl-C: nobody is to write into a folder that is gone
            for process in started:
                process.kill()
        seconds = time.perf_counter() - begun
        rows = {row: summary(folder, row, given.method) for row in [LONGEST, *OTHERS]}
    record = {
        "method": given.method,
        "seeds": given.seeds,
        "seconds": round(seconds, 1),
        "processes": len(shares),
        **({"percent of the GPU": [given.split, 100 - given.split]} if given.split else {}),
        "accuracy": rows,
        "environment": environment(find_device(given.device)),
    }
    print(f"{given.method}, {given.seeds} seeds of {len(rows)} rows: {seconds:.1f} s")
    for row, found in rows.items():
        what = (
            f"{found['mean']:7.2f} ± {found['std']:.2f}, {found['n']} seeds" if found else "failed"
        )
        print(f"  {row:<24}{what}")
    if given.out and any(rows.values()):  # else an older file may be the better one
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return int(any(codes))


def limited(percent: int) -> dict[str, str]:
    """The environment of a process that has a share of the GPU, or all of it."""
    name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    inherited = {key: value for key, value in os.environ.items() if key != name}
    return {**inherited, name: str(percent)} if 0 < percent < 100 else inherited


def summary(folder: Path, row: str, method: str) -> dict[str, Any] | None:
    """Mean and standard deviation of a row's test accuracy, and of how many seeds."""
    path = folder / row / "results.json"
    found = Results.read(path).summary.get(method) if path.exists() else None
    if found is None:
        return None
    return {"mean": round(found["mean"], 2), "std": round(found["std"], 2), "n": found["n"]}


if __name__ == "__main__":
    sys.exit(main())
