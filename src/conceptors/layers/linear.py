"""Linear: rows are the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from conceptors.layers.base import Block, Call, Moment, Rows, Sample, register


@register(nn.Linear)
class LinearRule:
    def blocks(self, layer: nn.Linear) -> list[Block]:
        return [Block()]

    def rows(self, layer: Any, call: Call, sample: Sample) -> Iterator[tuple[str, Rows | Moment]]:
        yield "", sample(call.argument(0, "input"))
