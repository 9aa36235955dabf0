"""The performance suite: what shielding costs, beside the least it can cost on the machine.

`conceptors bench` runs it. A benchmark is a function `(size, device) -> list[Row]` with a name in
`registry.py`. A `Recipe` is a network and how it is trained; `steps`, `remember` and `growth` each
measure something of it.
"""

from conceptors.bench.registry import BENCHMARKS
from conceptors.bench.row import SIZES, Benchmark, Row, Size, UnfitError
from conceptors.bench.suite import Outcome, choose, find_device, read, run_suite
from conceptors.bench.table import table

__all__ = [
    "BENCHMARKS",
    "SIZES",
    "Benchmark",
    "Outcome",
    "Row",
    "Size",
    "UnfitError",
    "choose",
    "find_device",
    "read",
    "run_suite",
    "table",
]
