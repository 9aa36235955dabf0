"""Timing side by side, and peak memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from conceptors.bench.row import Row, Size, pick

_MOST = 2000  # calls a block


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one number a round."""

    seconds: tuple[float, ...]
    calls: int  # in all, warm-up included

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = quantiles(self.seconds, n=4, method="inclusive")
        return low, high

    def against(self, other: Timing) -> tuple[float, float, float]:
        """Ratio of the medians, and the quartiles of the ratios round by round."""
        rounds = Timing(tuple(a / b for a, b in zip(self.seconds, other.seconds)), 0)
        return self.median / other.median, *rounds.quartiles


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give memory back between measurements."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, with the device idle before and after it.

    >>> timed(lambda: None, torch.device("cpu")) < 1
    True
    """
    wait(device)
    start = perf_counter()
    call()
    wait(device)
    return perf_counter() - start


def side_by_side(
    calls: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int = 9,
    block: float = 0.05,
    warm: int = 3,
) -> dict[str, Timing]:
    """Seconds a call of each, measured in turn so that a busy machine slows all down alike.

    In every round each is called `k` times in a row between two waits for the device; the one
    that comes first rotates. `k` is the same for all, so that a block of the fastest one takes
    at least `block` seconds, and so that all make the same number of calls.

    >>> found = side_by_side({"a": lambda: None}, torch.device("cpu"), rounds=3, block=0.0)
    >>> len(found["a"].seconds)
    3
    """
    for call in calls.values():
        for _ in range(warm):
            call()
    once = min(timed(call, device) for call in calls.values())
    count = min(_MOST, max(1, math.ceil(block / max(once, 1e-7))))
    times: dict[str, list[float]] = {name: [] for name in calls}

    def run(call: Callable[[], object]) -> None:
        for _ in range(count):
            call()

    names = list(calls)
    collecting = gc.isenabled()
    gc.disable()  # a collection in the middle would count for one of them
    try:
        for turn in range(rounds):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                call = calls[name]
                times[name].append(timed(lambda call=call: run(call), device) / count)  # type: ignore[misc]
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(tuple(t), warm + 1 + rounds * count) for name, t in times.items()}


def effort(size: Size, device: torch.device) -> dict[str, Any]:
    """Rounds, seconds a block and warm-up calls for a size, as `side_by_side` takes them."""
    return {
        "rounds": pick(size, 2, 9, 25),
        "block": pick(size, 0.0, 0.05, 0.2 if device.type == "cuda" else 0.1),
        "warm": pick(size, 1, 3, 10 if device.type == "cuda" else 3),
    }


def compared(row: Row, ours: Timing, plain: Timing) -> Row:
    """The row with both times, their ratio, and the share of the floor in what ours adds."""
    ratio, low, high = ours.against(plain)
    added = ours.median - plain.median
    return replace(
        row,
        plain=plain.median,
        ours=ours.median,
        ratio=ratio,
        share=row.floor / added if row.floor is not None and added > 0 else None,
        notes={"ratio_quartiles": [low, high], **row.notes},
    )


def peak_memory(build: Callable[[], Callable[[], object]], device: torch.device) -> int:
    """Most bytes held at once while the call that `build` returns is made the second time.

    `build` makes everything that the call needs; all of it counts. On CUDA everything that this
    process holds counts, work space of libraries too: free what does not belong before.
    """
    release(device)
    if device.type == "cuda":
        call = build()
        call()
        wait(device)
        gc.collect()
        torch.cuda.reset_peak_memory_stats(device)
        call()
        wait(device)
        return torch.cuda.max_memory_allocated(device)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call = build()
        call()
        gc.collect()
        with record_function("measured from here"):
            call()
    return _peak(found, "measured from here")


def _peak(found: Any, mark: str) -> int:
    """The largest sum of allocations since a marked moment, with those before it."""
    events = sorted(found.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    start = next(event.start_ns() for event in events if event.name() == mark)
    held = peak = 0
    for event in events:
        if event.name() == "[memory]":
            held += event.nbytes()
            if event.start_ns() >= start:
                peak = max(peak, held)
    return peak
