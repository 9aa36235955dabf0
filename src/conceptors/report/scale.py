"""Round numbers for axes."""

from __future__ import annotations

import math
from collections.abc import Iterable


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """About `wanted` round numbers that cover [low, high].

    >>> ticks(47.0, 99.5)
    [40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0]
    """
    span = max(high - low, 1e-9)
    raw = span / max(wanted - 1, 1)
    base = 10.0 ** math.floor(math.log10(raw))
    step = min((base * m for m in (1, 2, 5, 10)), key=lambda s: abs(s - raw))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 10) for k in range(first, max(last, first + 1) + 1)]


def percent_ticks(values: Iterable[float], wanted: int = 6) -> list[float]:
    """Ticks around percentages: close to the data, within [0, 100].

    >>> percent_ticks([94.2, 95.6])
    [94.2, 94.4, 94.6, 94.8, 95.0, 95.2, 95.4, 95.6]
    """
    finite = [v for v in values if math.isfinite(v)] or [0.0, 100.0]
    low, high = max(min(finite), 0.0), min(max(finite), 100.0)
    if high - low < 1:
        low, high = max(low - 0.5, 0.0), min(high + 0.5, 100.0)
    return [t for t in ticks(low, high, wanted) if 0 <= t <= 100]


def task_ticks(tasks: int, most: int = 10) -> list[int]:
    """Which of the numbers 1 ... tasks to print: all where there is room, else round ones.

    >>> task_ticks(4), task_ticks(100)
    ([1, 2, 3, 4], [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100])
    """
    if tasks <= most:
        return list(range(1, tasks + 1))
    step = next(s for k in range(9) for s in (10**k, 2 * 10**k, 5 * 10**k) if tasks / s <= most)
    return [1, *range(step if step > 1 else 2, tasks + 1, step)]


def some(items: int, most: int) -> list[int]:
    """At most `most` of the indices 0 ... items - 1, evenly spread, with both ends.

    >>> some(100, 5)
    [0, 25, 50, 74, 99]
    """
    if items <= most:
        return list(range(items))
    return sorted({round(k * (items - 1) / (most - 1)) for k in range(most)})


def milestones(tasks: int, most: int = 10) -> list[int]:
    """Numbers of tasks worth a curve of their own: all up to `most`, else 1, 2, 5, 10, 20, ...

    >>> milestones(3), milestones(100)
    ([1, 2, 3], [1, 2, 5, 10, 20, 50, 100])
    """
    if tasks <= most:
        return list(range(1, tasks + 1))
    powers = [m * 10**k for k in range(len(str(tasks))) for m in (1, 2, 5)]
    return [*(p for p in powers if p < tasks), tasks]
