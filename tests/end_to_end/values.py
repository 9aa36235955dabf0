"""Values that nothing is wrong with, to be given something wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conceptors import Conceptor, Correlation, FrequentDirections
from helpers import normal

Call = Callable[[Any], object]

DENSE = Conceptor.from_states(normal(0, 9, 3), 1.0)
FACTORED = Conceptor.from_states(normal(0, 2, 3), 1.0)
BATCH = Conceptor.from_states(normal(0, 4, 2, 3), 1.0)
SKETCH = FrequentDirections(3, 2).update(normal(0, 9, 3))
STREAM = Correlation(3).update(normal(0, 9, 3))


def score(_: Conceptor, __: torch.Tensor) -> float:
    return 0.0
