"""Looking at what the library takes from a layer."""

import torch
from torch import Tensor, nn

from conceptors._internal.batches import undisturbed
from conceptors.layers import Call, Draws, Rows, Sample, SecondMoment, find_rule
from layers.cases import Draw, Inputs, run


def captured(
    layer: nn.Module, inputs: Inputs, cap: int | None = None, seed: int = 0
) -> dict[str, list[Rows | SecondMoment]]:
    """What the rule of a layer yields for one call."""
    rule = find_rule(layer)
    assert rule is not None
    parts: dict[str, list[Rows | SecondMoment]] = {}
    with undisturbed(layer):
        call = Call(*inputs, run(layer, inputs))
        for name, rows in rule.rows(layer, call, Sample(lambda *_: cap, Draws(seed))):
            parts.setdefault(name, []).append(rows)
    return parts


def joined(parts: list[Rows | SecondMoment]) -> Tensor:
    return torch.cat([part.values for part in parts if isinstance(part, Rows)], 1)


def in_some_order(rows: Tensor) -> Tensor:
    """The rows of every group in an order that depends on the rows alone."""
    marks = rows.double() @ Draw(7).normal(rows.shape[-1])
    return rows.take_along_dim(marks.argsort(-1)[..., None], -2)


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether two tensors agree, relative to their size."""
    return bool((a.double() - b.double()).norm() <= tolerance * (1e-12 + b.double().norm()))
