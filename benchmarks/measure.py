"""Interleaved timing, peak memory, and the table of results."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from conceptors.experiments.machine import processor


class Row(NamedTuple):
    """One line of the table."""

    what: str
    size: str
    against: str
    ours: str
    theirs: str
    ratio: str
    target: str


def target(wanted: str, met: bool) -> str:
    return f"{wanted}: {'met' if met else 'MISSED'}"


def interleave(
    benchmark: Any,
    ours: Callable[[], object],
    rivals: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    repeat: int = 1,
) -> tuple[float, dict[str, float]]:
    """Median seconds a call of ours, and of each rival.

    In every round each rival is called `repeat` times in a row, then ours, so that a busy
    machine slows all of them down alike.
    """
    times: dict[str, list[float]] = {name: [] for name in rivals}

    def run_rivals() -> None:
        for name, call in rivals.items():
            start = perf_counter()
            for _ in range(repeat):
                call()
            times[name].append((perf_counter() - start) / repeat)

    def run_ours() -> None:
        for _ in range(repeat):
            ours()

    ours()  # warm up
    benchmark.pedantic(run_ours, setup=run_rivals, rounds=rounds)
    if benchmark.disabled:  # the calls were made once, to see that they work
        return 0.0, dict.fromkeys(rivals, 0.0)
    seconds = benchmark.stats.stats.median / repeat
    return seconds, {name: median(taken) for name, taken in times.items()}


def peak_bytes(call: Callable[[], object]) -> tuple[int, int]:
    """Most bytes held at once beyond what was held before, and bytes held in the end.

    The profiler sees every allocation by torch, those within factorisations included.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = call()
    events = found.profiler.kineto_results.events()
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    del result
    return peak, held


def duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"


def environment() -> str:
    """Versions, threads and processor."""
    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads of {os.cpu_count()} cores, "
        f"{processor()}, Python {platform.python_version()}"
    )


def table(rows: list[Row]) -> str:
    """A Markdown table under a line about the machine."""
    head = Row("what", "size", "against", "ours", "theirs", "ratio", "target")
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
        for row in (head, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join([environment(), "", *lines])
