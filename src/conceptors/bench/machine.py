"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

from conceptors.experiments.machine import environment


def machine(device: torch.device) -> dict[str, Any]:
    """Names and versions, as plain values."""
    return {
        **environment(device),
        "device_name": name_of(device),
        "processor": processor(),
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
    }


def name_of(device: torch.device) -> str:
    """The GPU's name, or the processor's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def processor() -> str:
    """The model of the CPU, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def file_stem(device: torch.device) -> str:
    """A file name for results: cpu, or the name of the GPU.

    >>> file_stem(torch.device("cpu"))
    'cpu'
    """
    if device.type != "cuda":
        return "cpu"
    return re.sub(r"[^a-z0-9]+", "-", name_of(device).lower()).strip("-")


def heading(found: dict[str, Any], command: str) -> str:
    """Lines above the table."""
    where = found["device_name"]
    if found["cuda"]:
        where += f" (CUDA {found['cuda']}), {found['processor']}"
    lines = [
        f"{where}, {found['cores']} cores, {found['threads']} threads",
        f"conceptors {found['conceptors']}"
        f"{' (' + found['commit'] + ')' if found['commit'] else ''}, torch {found['torch']}, "
        f"Python {found['python']}, {found['platform']}",
        command,
    ]
    return "\n".join(lines)
