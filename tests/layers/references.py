"""What enters every weight block of a layer, worked out by hand, without the library.

Each function takes (layer, inputs, output) and gives rows `[g, n, d]` by block name. Attention and
recurrent layers are computed one sequence at a time, and the result must be the layer's own output.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
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


# --- embeddings --------------------------------------------------------------------------


def embedding_rows(layer: Any, inputs: Inputs, _output: Any) -> Rows:
    """One-hot rows, each token a group; a bag's row has the weight of the sample."""
    tokens = inputs.get(0, "input").flatten().tolist()
    given = inputs.get(2, "per_sample_weights") if isinstance(layer, nn.EmbeddingBag) else None
    weights = [1.0] * len(tokens) if given is None else given.flatten().tolist()
    rows = torch.zeros(layer.num_embeddings, len(tokens), 1, dtype=layer.weight.dtype)
    for i, (token, weight) in enumerate(zip(tokens, weights)):
        rows[token, i, 0] = weight
    return {"": rows}


# --- attention ---------------------------------------------------------------------------


def attention_rows(layer: Any, inputs: Inputs, output: Any) -> Rows:
    """Scaled dot-product attention, one sample and head at a time."""
    given = [inputs.get(i, name) for i, name in enumerate(("query", "key", "value"))]
    rows: Rows = {n: x.reshape(1, -1, x.shape[-1]) for n, x in zip("qkv", given)}
    time_first = [x if layer.batch_first or x.ndim == 2 else x.transpose(0, 1) for x in given]
    batches = [x if x.ndim == 3 else x[None] for x in time_first]
    if layer._qkv_same_embed_dim:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    zeros = torch.zeros(layer.embed_dim, dtype=given[0].dtype)
    biases = [zeros] * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    heads, width = layer.num_heads, layer.embed_dim // layer.num_heads
    mask, padding = inputs.get(5, "attn_mask"), inputs.get(3, "key_padding_mask")
    found = []
    for b in range(len(batches[0])):
        q, k, v = (x[b] @ w.mT + c for x, w, c in zip(batches, weights, biases))
        if layer.add_zero_attn:
            k, v = torch.cat([k, zeros[None]]), torch.cat([v, zeros[None]])
        joined = []
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            scores = q[:, part] @ k[:, part].mT / math.sqrt(width)
            own = mask[b * heads + h] if mask is not None and mask.ndim == 3 else mask
            for hidden in (
                own,
                None if padding is None else padding[b] if padding.ndim == 2 else padding,
            ):
                if hidden is None:
                    continue
                reach = scores[:, : hidden.shape[-1]]  # the extra zero key is never hidden
                if hidden.dtype == torch.bool:
                    reach.masked_fill_(hidden, -torch.inf)
                else:
                    reach.add_(hidden)
            joined.append(scores.softmax(-1) @ v[:, part])
        found.append(torch.cat(joined, -1))
    attended = torch.stack(found)
    bias = 0 if layer.out_proj.bias is None else layer.out_proj.bias
    result = attended @ layer.out_proj.weight.mT + bias
    result = result[0] if given[0].ndim == 2 else result
    result = result if layer.batch_first or given[0].ndim == 2 else result.transpose(0, 1)
    torch.testing.assert_close(result, output[0])
    return {**rows, "out": attended.reshape(1, -1, layer.embed_dim)}


# --- recurrent layers --------------------------------------------------------------------


def _gates(kind: str, a: Tensor, b: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step from what the input (a) and the state (b) drive: (hidden, cell)."""
    if "LSTM" in kind:
        i, f, g, o = (a + b).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    if "GRU" in kind:
        (ra, za, na), (rb, zb, nb) = a.chunk(3), b.chunk(3)
        z = torch.sigmoid(za + zb)
        return (1 - z) * torch.tanh(na + torch.sigmoid(ra + rb) * nb) + z * h, c
    return (torch.relu if "relu" in kind else torch.tanh)(a + b), c


def recurrent_rows(layer: Any, inputs: Inputs, output: Any) -> Rows:
    """One sequence at a time, each at its own length."""
    x, start = inputs.get(0, "input"), inputs.get(1, "hx")
    sequences, results = _sequences(layer, x), _sequences(layer, output[0])
    kind = layer.mode if isinstance(layer, nn.RNN) else type(layer).__name__
    kind = kind.lower() if isinstance(layer, nn.RNN) else kind
    ways = 2 if layer.bidirectional else 1
    size = layer.proj_size or layer.hidden_size
    found: dict[str, list[Tensor]] = {}
    for b, sequence in enumerate(sequences):
        steps = list(sequence)
        for depth in range(layer.num_layers):
            outputs = []
            for way in range(ways):
                suffix = f"_l{depth}" + ("_reverse" if way else "")
                parts: list[Any] = [
                    getattr(layer, f"weight_{p}{suffix}", None) for p in ("ih", "hh", "hr")
                ]
                zero = torch.zeros(len(parts[0]), dtype=sequence.dtype)
                biases = [getattr(layer, f"bias_{p}{suffix}", zero) for p in ("ih", "hh")]
                h = torch.zeros(size, dtype=sequence.dtype)
                c = torch.zeros(layer.hidden_size, dtype=sequence.dtype)
                if start is not None:
                    first = start if isinstance(start, tuple) else (start,)
                    own = [s[depth * ways + way] for s in first]
                    own = [s[b] if s.ndim == 2 else s for s in own]
                    h, c = own[0], own[-1] if len(own) > 1 else c
                made = []
                for step in reversed(steps) if way else steps:
                    found.setdefault("ih" + suffix, []).append(step)
                    found.setdefault("hh" + suffix, []).append(h)
                    inner, c = _gates(
                        kind, parts[0] @ step + biases[0], parts[1] @ h + biases[1], h, c
                    )
                    h = inner
                    if layer.proj_size:
                        found.setdefault("hr" + suffix, []).append(inner)
                        h = parts[2] @ inner
                    made.append(h)
                outputs.append(list(reversed(made)) if way else made)
            steps = [torch.cat(together) for together in zip(*outputs)]
        torch.testing.assert_close(torch.stack(steps), results[b])
    return {name: torch.stack(rows)[None] for name, rows in found.items()}


def _sequences(layer: Any, x: Any) -> list[Tensor]:
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        return [row[:length] for row, length in zip(padded, lengths.tolist())]
    if x.ndim == 2:
        return [x]
    return list(x if layer.batch_first else x.transpose(0, 1))


def cell_rows(layer: Any, inputs: Inputs, output: Any) -> Rows:
    x, start = inputs.get(0, "input"), inputs.get(1, "hx")
    kind = type(layer).__name__ + str(getattr(layer, "nonlinearity", ""))
    batch = x if x.ndim == 2 else x[None]
    zero = torch.zeros(len(batch), layer.hidden_size, dtype=x.dtype)
    states = start if isinstance(start, tuple) else (zero if start is None else start, zero)
    h, c = (s if s.ndim == 2 else s[None] for s in states)
    biases = [0, 0] if layer.bias is False else [layer.bias_ih, layer.bias_hh]
    made = [
        _gates(kind, layer.weight_ih @ x_ + biases[0], layer.weight_hh @ h_ + biases[1], h_, c_)[0]
        for x_, h_, c_ in zip(batch, h, c)
    ]
    result = output[0] if isinstance(output, tuple) else output
    torch.testing.assert_close(torch.stack(made), result if result.ndim == 2 else result[None])
    return {"ih": batch[None], "hh": h[None]}
