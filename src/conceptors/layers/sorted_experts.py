"""Experts that are given their rows in turn: weights `[experts, d, out]`, rows `[experts · n, d]`.

As Llama 4 has them in transformers: `down(act(gate) · up)` for the n rows of each expert, of which
those that are not sent to it are zero. Every expert is two blocks with the rows that it really got.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor, nn

from conceptors.layers.base import Block, Call, Rows, RowsByBlock, Sample, recognise
from conceptors.layers.twin import agree, own_parameters

_TRIED = 8  # rows of each expert that are computed once more, to see that this is what it does
_CLOSE = 0.05  # as products may be rounded to half precision; another formula differs by far more


def are_sorted_experts(layer: nn.Module) -> bool:
    """Whether a layer holds experts with these shapes, and takes rows alone."""
    held = own_parameters(layer)
    if held.keys() != {"gate_up_proj", "down_proj"} or any(p.ndim != 3 for p in held.values()):
        return False
    count, inner, out = held["down_proj"].shape
    return (
        held["gate_up_proj"].shape == (count, out, 2 * inner)
        and len(inspect.signature(type(layer).forward).parameters) == 2
        and callable(getattr(layer, "act_fn", None))
    )


@recognise(are_sorted_experts)
class SortedExpertsRule:
    def blocks(self, layer: Any) -> list[Block]:
        count = len(layer.down_proj)
        return [_block(name, i) for i in range(count) for name in ("gate_up_proj", "down_proj")]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        (x,) = (*call.args, *call.kwargs.values())
        each = x.reshape(len(layer.down_proj), -1, x.shape[-1])  # [experts, n, d]
        for i, (given, made) in enumerate(zip(each, call.output.reshape(each.shape))):
            some, wanted = given[:_TRIED], made[:_TRIED]
            if not agree(_between(layer, i, some) @ layer.down_proj[i], wanted, _CLOSE):
                raise ValueError(
                    f"{type(layer).__name__} computes something else than down(act(gate) · up) for "
                    f"every expert's rows in turn; register a rule for it"
                )
            rows = sample(given[given.any(-1)])  # the others give zero, whatever the weights are
            yield f"gate_up_proj.{i}", rows
            yield f"down_proj.{i}", Rows(_between(layer, i, rows.values), rows.weight)


def _block(name: str, expert: int) -> Block:
    return Block(
        weight=name,
        bias=None,
        view=lambda weight: weight[expert : expert + 1].mT,
        layout=f"expert-{expert}",
        rows_first=False,
        name=f"{name}.{expert}",
    )


def _between(layer: Any, expert: int, x: Tensor) -> Tensor:
    """What enters the second product of an expert."""
    gate, up = (x @ layer.gate_up_proj[expert]).chunk(2, -1)
    return up * layer.act_fn(gate)  # type: ignore[no-any-return]
