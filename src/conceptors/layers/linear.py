"""Linear: rows are the inputs."""

from __future__ import annotations

from typing import Any

from torch import nn

from conceptors.layers.base import Block, Call, RowsByBlock, Sample, register


@register(nn.Linear)
class LinearRule:
    def blocks(self, layer: nn.Linear) -> list[Block]:
        return [Block()]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        yield "", sample(call.argument(0, "input"))
