"""nn.MultiheadAttention: four matrices (q, k, v, out), the first three often in one tensor.

The output projection is used without being called, so no hook observes its input. The attention is
computed again with the identity in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.layers.base import Block, Call, Rows, RowsByBlock, Sample, register


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
        names = ("query", "key", "value")
        query, key, value = (call.argument(i, name) for i, name in enumerate(names))
        drawn: dict[int, Rows] = {}  # self-attention passes the same tensor three times
        for name, x in zip("qkv", (query, key, value)):
            drawn[id(x)] = rows = drawn.get(id(x)) or sample(x)
            yield name, rows
        yield "out", sample(attended(layer, call, query, key, value))


def attended(
    layer: nn.MultiheadAttention, call: Call, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Compute the input of the output projection."""
    batch_second = not layer.batch_first or query.ndim == 2
    if not batch_second:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    separate: dict[str, Any] = {}
    if not layer._qkv_same_embed_dim:
        separate = {f"{name}_proj_weight": getattr(layer, f"{name}_proj_weight") for name in "qkv"}
        separate["use_separate_proj_weight"] = True
    identity = torch.eye(layer.embed_dim, dtype=query.dtype, device=query.device)
    result, _ = functional.multi_head_attention_forward(
        query,
        key,
        value,
        layer.embed_dim,
        layer.num_heads,
        layer.in_proj_weight,
        layer.in_proj_bias,
        layer.bias_k,
        layer.bias_v,
        layer.add_zero_attn,
        0.0,
        identity,
        None,
        training=False,
        key_padding_mask=call.argument(3, "key_padding_mask"),
        need_weights=bool(call.argument(4, "need_weights", True)),  # hides other keys if causal
        attn_mask=call.argument(5, "attn_mask"),
        is_causal=bool(call.argument(7, "is_causal", False)),
        **separate,
    )
    return result if batch_second else result.transpose(0, 1)


def _third(i: int, size: int) -> Callable[[Tensor], Tensor]:
    return lambda packed: packed[i * size : (i + 1) * size][None]
