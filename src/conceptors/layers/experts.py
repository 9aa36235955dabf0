"""Experts in one module: weights `[experts, out, d]`, of which every row meets those it is sent to.

As transformers 5 holds them (Mixtral and its like): `down(act(gate_up(x)))` for each chosen expert,
added up with the router's weights. Every expert is two blocks with the rows that it really got.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.layers.base import Block, Call, Rows, RowsByBlock, Sample, recognise
from conceptors.layers.twin import agree, own_parameters

_UPS = ("gate_up_proj", "up_proj")
_TRIED = 8  # rows of a call that are computed once more, to see that this is what experts do
_CLOSE = 0.05  # as products may be rounded to half precision; another formula differs by far more


def are_experts(layer: nn.Module) -> bool:
    """Whether a layer holds experts and takes rows, the experts they are sent to, and weights."""
    held = own_parameters(layer)
    up = _up(layer)
    if up is None or not held.keys() - {up, "down_proj"} <= {f"{up}_bias", "down_proj_bias"}:
        return False
    weights, biases = [held[up], held["down_proj"]], [p for p in held.values() if p.ndim == 2]
    return (
        all(p.ndim == 3 for p in weights)
        and len(weights) + len(biases) == len(held)
        and len({len(p) for p in held.values()}) == 1
        and len(inspect.signature(type(layer).forward).parameters) == 4
        and callable(getattr(layer, "_apply_gate", getattr(layer, "act_fn", None)))
    )


def _up(layer: nn.Module) -> str | None:
    held = own_parameters(layer)
    found = [name for name in _UPS if name in held]
    return found[0] if len(found) == 1 and "down_proj" in held else None


@recognise(are_experts)
class ExpertsRule:
    def blocks(self, layer: Any) -> list[Block]:
        count = len(layer.down_proj)
        return [_block(layer, name, i) for i in range(count) for name in (_up(layer), "down_proj")]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        bound = inspect.signature(layer.forward).bind(*call.args, **call.kwargs)
        x, chosen, shares = bound.arguments.values()
        x = x.reshape(-1, x.shape[-1])  # [n, d]
        chosen, shares = (t.reshape(-1, t.shape[-1]) for t in (chosen, shares))  # [n, chosen]
        self._check(layer, x, chosen, shares, call.output.reshape(x.shape))
        up = _up(layer)
        for i in range(len(layer.down_proj)):
            rows = sample(x[(chosen == i).any(-1)])
            yield f"{up}.{i}", rows
            yield f"down_proj.{i}", Rows(_between(layer, i, rows.values), rows.weight)

    def _check(self, layer: Any, x: Tensor, chosen: Tensor, shares: Tensor, output: Tensor) -> None:
        """Whether experts do what is taken for granted here, on some rows."""
        found = torch.zeros_like(x[:_TRIED])
        for n, row in enumerate(x[:_TRIED]):
            for i, share in zip(chosen[n].tolist(), shares[n]):
                if i < len(layer.down_proj):  # others are on other machines
                    given = _times(layer, "down_proj", i, _between(layer, i, row))
                    found[n] += (share * given).to(found.dtype)
        if not agree(found, output[:_TRIED], _CLOSE):
            raise ValueError(
                f"{type(layer).__name__} computes something else than down(act(gate_up(x))) of the "
                f"chosen experts; register a rule for it"
            )


def _block(layer: Any, name: str | None, expert: int) -> Block:
    bias = f"{name}_bias"

    def view(weight: Tensor) -> Tensor:
        own = weight[expert : expert + 1]
        return own.mT if _is_turned(layer) else own

    return Block(
        weight=name,
        bias=bias if hasattr(layer, bias) else None,
        view=view,
        bias_view=lambda shift: shift[expert : expert + 1],
        layout=f"expert-{expert}",
        rows_first=False,
        name=f"{name}.{expert}",
    )


def _is_turned(layer: Any) -> bool:
    """Whether weights are `[experts, d, out]`."""
    return bool(getattr(layer, "is_transposed", False))


def _between(layer: Any, expert: int, x: Tensor) -> Tensor:
    """What enters the second product of an expert."""
    up = _up(layer) or ""
    found = _times(layer, up, expert, x)
    if up == "up_proj":
        return layer.act_fn(found)  # type: ignore[no-any-return]
    if hasattr(layer, "_apply_gate"):
        return layer._apply_gate(found)  # type: ignore[no-any-return]
    gate, value = found.chunk(2, -1)
    return layer.act_fn(gate) * value  # type: ignore[no-any-return]


def _times(layer: Any, name: str, expert: int, x: Tensor) -> Tensor:
    weight, bias = getattr(layer, name)[expert], getattr(layer, f"{name}_bias", None)
    weight = weight.mT if _is_turned(layer) else weight
    return functional.linear(x, weight, None if bias is None else bias[expert])
