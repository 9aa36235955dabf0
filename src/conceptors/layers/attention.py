"""nn.MultiheadAttention: four matrices (q, k, v, out), the first three often in one tensor.

The output projection is used without being called, so no hook observes its input. The attention is
computed again with the identity in its place.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from conceptors.layers.base import Block, Call, RowsByBlock, Sample, register
from conceptors.layers.twin import twin


@register(nn.MultiheadAttention)
class MultiheadAttentionRule:
    def blocks(self, layer: nn.MultiheadAttention) -> list[Block]:
        blocks = []
        for i, name in enumerate("qkv"):
            third = _third(i, layer.embed_dim)
            packed = layer._qkv_same_embed_dim
            blocks.append(
                Block(
                    weight="in_proj_weight" if packed else f"{name}_proj_weight",
                    bias="in_proj_bias",
                    view=third if packed else Block.view,
                    bias_view=third,
                    layout=f"attention-{name}",
                    rows_first=False,
                    name=name,
                )
            )
        return [*blocks, Block("out_proj.weight", "out_proj.bias", name="out")]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        for i, name in enumerate(("query", "key", "value")):
            yield name[0], sample(call.argument(i, name))
        yield "out", sample(attended(layer, call))


def attended(layer: nn.MultiheadAttention, call: Call) -> Tensor:
    """Compute the input of the output projection."""
    output: Tensor = call.output[0]
    identity = torch.eye(layer.embed_dim, dtype=output.dtype, device=output.device)
    copy = twin(layer, layer._parameters)
    copy._modules = {"out_proj": SimpleNamespace(weight=identity, bias=None)}
    result: Tensor = nn.MultiheadAttention.forward(copy, *call.args, **call.kwargs)[0]
    return result


def _third(i: int, size: int) -> Callable[[Tensor], Tensor]:
    return lambda packed: packed[i * size : (i + 1) * size][None]
