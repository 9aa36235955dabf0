"""The device that is asked for, and where the numbers come from."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from conceptors import __version__


def find_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is the first GPU, or else the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        available = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
        hint = "did you mean 'cuda'? " if name == "gpu" else ""
        raise ValueError(
            f"device {name!r} cannot be used; {hint}this machine has: {', '.join(available)}"
        ) from None
    return device


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and the machine, as plain values."""
    cuda = device.type == "cuda"
    return {
        "conceptors": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if cuda else processor(),
        "cores": os.cpu_count(),
        "platform": platform.system(),
    }


def processor() -> str:
    """The model of the CPU, if the system names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8", "replace").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
