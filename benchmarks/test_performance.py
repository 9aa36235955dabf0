"""The suite of `conceptors bench`, a test a benchmark; with --small at tiny size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.measure import Row, target
from conceptors.bench import BENCHMARKS, find_device
from conceptors.bench import Row as Measured
from conceptors.bench.table import amount


@pytest.mark.parametrize("name", BENCHMARKS)
def test_performance(benchmark: Any, rows: list[Row], small: bool, name: str) -> None:
    """Missed targets are shown, not failed: they are set for machines of their own."""
    device = torch.device("cpu") if small else find_device("auto")
    chosen = BENCHMARKS[name]
    if not small and device.type not in chosen.devices:
        pytest.skip(f"{name} is meant for {', '.join(chosen.devices)}")
    size: Any = "tiny" if small else "full"
    found = benchmark.pedantic(lambda: chosen.run(size, device), rounds=1)
    assert found
    rows += [_line(row) for row in found]


def _line(row: Measured) -> Row:
    wanted = f"{'>=' if row.more else '<='} {row.target}"
    return Row(
        row.what,
        row.setting,
        "plain" if row.plain is not None else "",
        amount(row.ours, row.unit),
        amount(row.plain, row.unit),
        "" if row.ratio is None else f"{row.ratio:.3f}",
        "" if row.met is None else target(wanted, row.met),
    )
