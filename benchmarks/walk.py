"""Count the functions and files of the package that one call passes through.

A two-layer network is shielded, remembers a task, and trains on the next one. Then one steady
optimizer step and one `remember` run under `sys.setprofile`. Functions that are called more than
once count once; comprehensions and lambdas do not count.

    python -m benchmarks.walk               # the counts
    python -m benchmarks.walk --list        # and the names, by file
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import conceptors
from conceptors import Shield

PACKAGE = Path(conceptors.__file__).parent


def walk(call: Callable[[], Any]) -> dict[str, set[str]]:
    """Return the functions of the package that run during a call, by file."""
    functions: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and path.is_relative_to(PACKAGE) and not name.endswith(">"):
            functions.setdefault(str(path.relative_to(PACKAGE)), set()).add(name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions


def main(arguments: list[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--list", action="store_true", help="print the names of the functions")
    asked = parser.parse_args(arguments)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5))
    x = torch.randn(200, 20)
    shield = Shield(model)
    optimizer = shield.guard(torch.optim.AdamW(model.parameters()))
    shield.remember(x)
    for _ in range(40):  # the first 20 measure how large the loss is
        optimizer.zero_grad()
        model(x.flip(1)).square().mean().backward()
        optimizer.step()
    for what, call in (("step", optimizer.step), ("remember", lambda: shield.remember(x))):
        functions = walk(call)
        print(f"{what}: {sum(map(len, functions.values()))} functions in {len(functions)} files")
        for file, names in sorted(functions.items()) if asked.list else ():
            print(f"  {file}: {', '.join(sorted(names))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
