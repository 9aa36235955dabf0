"""The device that is asked for, and where the numbers come from."""

from __future__ import annotations

import os
import platform
import subprocess
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch


def find_device(name: str) -> torch.device:
    """The device of that name; "auto" is the first GPU, or else the CPU.

    Raises:
        ValueError: there is no such device here; the message says which there are.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        here = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        close = ["cuda"] if name == "gpu" else get_close_matches(name, here, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(
            f"device {name!r} cannot be used; {hint}this machine has: {', '.join(here)}"
        ) from None
    return device


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and the machine, as plain values."""
    from conceptors import __version__

    cuda = device.type == "cuda"
    return {
        "conceptors": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if cuda else processor(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if cuda else None,
        "platform": platform.system(),
    }


def processor() -> str:
    """The model of the CPU, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of this project's own checkout; None where it is installed or copied elsewhere.

    It says so if the source is no longer as it was committed.

    A virtual environment may lie inside a user's repository, whose commit says nothing of ours.
    """
    here = Path(__file__).resolve()
    root = here.parents[3]  # src/conceptors/experiments
    top = _git(root, "rev-parse", "--show-toplevel")
    if top is None or Path(top).resolve() != root or not _is_ours(root / "pyproject.toml"):
        return None
    if _git(root, "ls-files", "--error-unmatch", str(here)) is None:
        return None
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src")
    return f"{head} and changes" if head and changed else head


def _is_ours(project: Path) -> bool:
    try:
        found = tomllib.loads(project.read_text("utf-8"))
        return bool(found["project"]["name"] == "conceptors")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _git(folder: Path, *words: str) -> str | None:
    """What git says of a folder, whatever GIT_DIR and the like point to."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            env=own,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
