"""Time and memory of one domain, each method alone on the machine, one after the other."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from conceptors.bench.pretrained.cells import quiet
from conceptors.bench.pretrained.methods import Settings
from conceptors.bench.pretrained.registry import METHODS
from conceptors.bench.pretrained.stream import Size, read


def measure(
    settings: dict[str, Settings], size: Size, device: str, say: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Seconds of the second domain, when there is something to protect, and the peak so far.

    The first domain is learned for one epoch, to warm up. Whatever a method does at the end of a
    domain is included. Joint training is left out: it knows no domains.
    """
    found = {}
    for name, own in settings.items():
        if METHODS[name].at_once:
            continue
        with quiet():
            found[name] = _one(name, own, size, device)
        say(f"{name}: {found[name]}")
    return found


def add_ratios(timing: dict[str, dict[str, Any]]) -> None:
    """How long each method takes beside plain training, once that was measured."""
    for own in timing.values():
        if "plain" in timing:
            own["ratio"] = round(own["seconds"] / timing["plain"]["seconds"], 3)


def _one(name: str, settings: Settings, size: Size, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    cuda = torch.device(device).type == "cuda"
    if cuda:
        gc.collect()  # what the last method held is not this one's
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    method = METHODS[name](read(size, device), settings, 0, device)
    full = method.settings["epochs"]
    method.settings["epochs"] = 1
    method.learn(0)
    method.settings["epochs"] = full
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    method.learn(1)
    if cuda:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    memory = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1) if cuda else None
    return {"seconds": round(seconds, 3), "memory_mib": memory}
