"""Experts in one module, with weights `[experts, out, d]` or `[experts, d, out]`.

Layers with chosen experts (Mixtral and similar models in transformers 5) receive rows, the experts
that each row is sent to, and shares. They sum `share * down(act(gate_up(x)))` over the chosen
experts. Layers with sorted experts (Llama 4) receive only rows `[experts · n, d]`: n for each
expert, zero where a row is not sent to it. Each expert is two blocks with the rows sent to it.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.layers.base import Block, Call, Rows, RowsByBlock, Sample, recognise
from conceptors.layers.twin import agree, own_parameters

_UPS = ("gate_up_proj", "up_proj")
_CHECKED = 8  # rows that are recomputed, to verify the formula
_CLOSE = 0.05  # products may be rounded to half precision; another formula differs by far more


def _up(layer: nn.Module) -> str:
    """Return the name of the first weight; empty unless there is exactly one."""
    names = [name for name in _UPS if name in own_parameters(layer)]
    return names[0] if len(names) == 1 else ""


def inputs_of_experts(layer: nn.Module) -> int:
    """Return 3 for a layer with chosen experts, 1 with sorted experts, and 0 for other layers."""
    parameters, up = own_parameters(layer), _up(layer)
    dims = {up: 3, "down_proj": 3, f"{up}_bias": 2, "down_proj_bias": 2}
    if (
        not {up, "down_proj"} <= parameters.keys()
        or not all(p.ndim == dims.get(name) for name, p in parameters.items())
        or len({len(p) for p in parameters.values()}) > 1
        or not callable(getattr(layer, "_apply_gate", getattr(layer, "act_fn", None)))
    ):
        return 0
    inputs = len(inspect.signature(type(layer).forward).parameters) - 1
    if inputs == 1:  # weights [experts, d, out]
        down = parameters["down_proj"]
        fits = parameters[up].shape == (down.shape[0], down.shape[2], 2 * down.shape[1])
        return int(fits and parameters.keys() == {"gate_up_proj", "down_proj"})
    return inputs if inputs == 3 else 0


def are_sorted(layer: nn.Module) -> bool:
    """Whether a layer stores experts with weights `[experts, d, out]` and receives only rows."""
    return inputs_of_experts(layer) == 1


@recognise(lambda layer: inputs_of_experts(layer) > 0)
class ExpertsRule:
    def blocks(self, layer: Any) -> list[Block]:
        count = len(layer.down_proj)
        return [_block(layer, name, i) for i in range(count) for name in (_up(layer), "down_proj")]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        for i, x in enumerate((_sorted if are_sorted(layer) else _chosen)(layer, call, sample)):
            rows = sample(x)
            yield f"{_up(layer)}.{i}", rows
            yield f"down_proj.{i}", Rows(_hidden(layer, i, rows.values), rows.weight)


def _chosen(layer: Any, call: Call, sample: Sample) -> Iterator[Tensor]:
    """Return the rows of each expert."""
    x, chosen, shares = inspect.signature(layer.forward).bind(*call.args, **call.kwargs).args
    x = x.reshape(-1, x.shape[-1])  # [n, d]
    chosen, shares = (t.reshape(-1, t.shape[-1]) for t in (chosen, shares))  # [n, chosen]
    outputs = torch.zeros_like(x[:_CHECKED])
    for n, row in enumerate(x[:_CHECKED]):
        for i, share in zip(chosen[n].tolist(), shares[n]):
            if i < len(layer.down_proj):  # others are on other machines
                outputs[n] += (share * _output(layer, i, row)).to(outputs.dtype)
    _check(layer, outputs, call.output.reshape(x.shape)[:_CHECKED])
    x, chosen = sample.unpadded(x), sample.unpadded(chosen)
    return (x[(chosen == i).any(-1)] for i in range(len(layer.down_proj)))


def _sorted(layer: Any, call: Call, sample: Sample) -> Iterator[Tensor]:
    """Return the rows of each expert, without zero rows, whose output is always zero."""
    (x,) = (*call.args, *call.kwargs.values())
    by_expert = x.reshape(len(layer.down_proj), -1, x.shape[-1])
    for i, (rows, outputs) in enumerate(zip(by_expert, call.output.reshape(by_expert.shape))):
        _check(layer, _output(layer, i, rows[:_CHECKED]), outputs[:_CHECKED])
    return (rows[rows.any(-1)] for rows in map(sample.unpadded, by_expert))


def _check(layer: nn.Module, computed: Tensor, output: Tensor) -> None:
    if not agree(computed, output, _CLOSE):
        raise ValueError(
            f"{type(layer).__name__} does not compute down(act(gate_up(x))) of its experts, so "
            f"the inputs of its weights are unknown; register a rule for it"
        )


def _block(layer: Any, name: str, expert: int) -> Block:
    def view(weight: Tensor) -> Tensor:
        matrix = weight[expert : expert + 1]
        return matrix.mT if _is_transposed(layer) else matrix

    return Block(
        weight=name,
        bias=f"{name}_bias" if hasattr(layer, f"{name}_bias") else None,
        view=view,
        bias_view=lambda bias: bias[expert : expert + 1],
        layout=f"expert-{expert}",
        rows_first=False,
        name=f"{name}.{expert}",
    )


def _is_transposed(layer: Any) -> bool:
    """Whether weights are `[experts, d, out]`."""
    return bool(getattr(layer, "is_transposed", False)) or are_sorted(layer)


def _hidden(layer: Any, expert: int, x: Tensor) -> Tensor:
    """Compute the input of the second product of an expert."""
    inner = _product(layer, _up(layer), expert, x)
    if _up(layer) == "up_proj":
        return layer.act_fn(inner)  # type: ignore[no-any-return]
    if hasattr(layer, "_apply_gate"):
        return layer._apply_gate(inner)  # type: ignore[no-any-return]
    gate, value = inner.chunk(2, -1)
    return layer.act_fn(gate) * value  # type: ignore[no-any-return]


def _output(layer: Any, expert: int, x: Tensor) -> Tensor:
    return _product(layer, "down_proj", expert, _hidden(layer, expert, x))


def _product(layer: Any, name: str, expert: int, x: Tensor) -> Tensor:
    weight, bias = getattr(layer, name)[expert], getattr(layer, f"{name}_bias", None)
    weight = weight.mT if _is_transposed(layer) else weight
    return functional.linear(x, weight, None if bias is None else bias[expert])
