"""What enters every weight block of a layer, worked out by hand, without the library.

Each function takes (layer, inputs, output) and gives rows `[g, n, d]` by block name. Attention and
recurrent layers are computed from their weights, and the result must be the layer's own output.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils._pytree import tree_leaves

Rows = dict[str, Tensor]


class Inputs(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def get(self, position: int, name: str) -> Any:
        return self.args[position] if position < len(self.args) else self.kwargs.get(name)


def flat(output: Any) -> Tensor:
    """All numbers that a layer gives, whatever it wraps them in."""
    leaves = [t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()]
    return torch.cat([leaf.flatten() for leaf in leaves])


def embedding_rows(layer: Any, inputs: Inputs, _output: Any) -> Rows:
    """One-hot rows, each token a group; a bag's row has the weight of the sample."""
    tokens = inputs.get(0, "input").flatten()
    weights = inputs.get(2, "per_sample_weights") if isinstance(layer, nn.EmbeddingBag) else None
    rows = functional.one_hot(tokens, layer.num_embeddings).to(layer.weight.dtype)
    rows = rows if weights is None else rows * weights.reshape(-1, 1)
    return {"": rows.mT[..., None]}


def attention_rows(layer: Any, inputs: Inputs, output: Any) -> Rows:
    """Scaled dot-product attention of all heads, with `[batch, time, features]` inside."""
    given = [inputs.get(i, name) for i, name in enumerate(("query", "key", "value"))]
    rows: Rows = {n: x.reshape(1, -1, x.shape[-1]) for n, x in zip("qkv", given)}
    is_batch = given[0].ndim == 3
    swaps = is_batch and not layer.batch_first
    batches = [x.transpose(0, 1) if swaps else x if is_batch else x[None] for x in given]
    if layer._qkv_same_embed_dim:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    q, k, v = map(functional.linear, batches, weights, layer.in_proj_bias.chunk(3))
    if layer.add_zero_attn:
        k, v = (functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
    q, k, v = (x.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    scores = torch.zeros(*q.shape[:-1], k.shape[-2], dtype=q.dtype)
    mask, padding = inputs.get(5, "attn_mask"), inputs.get(3, "key_padding_mask")
    if mask is not None:
        mask = mask.unflatten(0, scores.shape[:2]) if mask.ndim == 3 else mask
        scores += mask if mask.is_floating_point() else torch.where(mask, -torch.inf, 0.0)
    if padding is not None:
        scores += torch.where(padding, -torch.inf, 0.0)[:, None, None]
    heads = functional.scaled_dot_product_attention(q, k, v, scores)
    attended = heads.transpose(1, 2).flatten(2)
    result = layer.out_proj(attended)
    result = result.transpose(0, 1) if swaps else result if is_batch else result[0]
    torch.testing.assert_close(result, output[0])
    return {**rows, "out": attended.reshape(1, -1, layer.embed_dim)}


def recurrent_rows(layer: Any, inputs: Inputs, output: Any) -> Rows:
    """One sequence, depth and direction at a time."""
    start, ways = inputs.get(1, "hx"), 2 if layer.bidirectional else 1
    sequences = zip(_sequences(layer, inputs.get(0, "input")), _sequences(layer, output[0]))
    found: dict[str, list[Tensor]] = {}
    for number, (sequence, result) in enumerate(sequences):
        steps = sequence
        for depth in range(layer.num_layers):
            outputs = []
            for way in range(ways):
                suffix = f"_l{depth}" + "_reverse" * way
                state = _initial(layer, start, depth * ways + way, number, steps)
                rows, states = _one_way(layer, suffix, steps.flip(0) if way else steps, *state)
                outputs.append(states.flip(0) if way else states)
                for name, values in rows.items():
                    found.setdefault(name + suffix, []).append(values)
            steps = torch.cat(outputs, -1)
        torch.testing.assert_close(steps, result)
    return {name: torch.cat(values)[None] for name, values in found.items()}


def _one_way(layer: Any, suffix: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Rows, Tensor]:
    """Rows of one direction `[time, size]`, and its states after every step."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    weights = [getattr(layer, name + suffix) for name in names if hasattr(layer, name + suffix)]
    states = _run(layer, x, h, c, weights)
    rows = {"ih": x, "hh": torch.cat([h, states[:-1]])}
    if layer.proj_size:  # the same states as inputs of a layer without recurrence or projection
        free = [torch.cat(weights[:2], 1), weights[0].new_zeros(4 * c.shape[1], c.shape[1])]
        both = torch.cat([rows["ih"], rows["hh"]], 1)
        rows["hr"] = _run(layer, both, torch.zeros_like(c), c, [*free, *weights[2:4]])
    return rows, states


def _run(layer: Any, x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> Tensor:
    """States `[time, size]` of one direction, by torch's own kernel."""
    kernel: Any = getattr(torch, layer.mode.lower())
    state = (h[None], c[None]) if layer.mode == "LSTM" else h[None]
    result: Tensor = kernel(x[:, None], state, weights, layer.bias, 1, 0.0, False, False, False)[0]
    return result[:, 0]


def _initial(layer: Any, given: Any, place: int, number: int, x: Tensor) -> list[Tensor]:
    """States `[1, size]` of a direction and a sequence: hidden and cell, zero if not given."""
    sizes = (layer.proj_size or layer.hidden_size, layer.hidden_size)
    zeros = [x.new_zeros(1, size) for size in sizes]
    if given is None:
        return zeros
    parts = given if isinstance(given, tuple) else (given,)
    states = [part[place, number] if part.ndim == 3 else part[place] for part in parts]
    return [*(state[None] for state in states), *zeros[len(states) :]]


def _sequences(layer: Any, x: Any) -> list[Tensor]:
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        return [row[:length] for row, length in zip(padded, lengths.tolist())]
    if x.ndim == 2:
        return [x]
    return list(x if layer.batch_first else x.transpose(0, 1))


def cell_rows(layer: Any, inputs: Inputs, _output: Any) -> Rows:
    """The input and the hidden state, which is zero if not given."""
    x, start = inputs.get(0, "input"), inputs.get(1, "hx")
    hidden = start[0] if isinstance(start, tuple) else start
    hidden = x.new_zeros(*x.shape[:-1], layer.hidden_size) if hidden is None else hidden
    return {"ih": x.reshape(1, -1, x.shape[-1]), "hh": hidden.reshape(1, -1, layer.hidden_size)}
