"""RNN, LSTM and GRU: rows are the inputs of each layer and its previous hidden states.

A call returns only the last layer's states, so the layers are run again one at a time.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from conceptors.layers.base import Block, Call, RowsByBlock, Sample, register


@register(nn.RNN, nn.LSTM, nn.GRU)
class RecurrentRule:
    def blocks(self, layer: Any) -> list[Block]:
        blocks = []
        for suffix in _suffixes(layer):
            for part in ("ih", "hh"):
                bias = f"bias_{part}{suffix}" if layer.bias else None
                blocks.append(Block(f"weight_{part}{suffix}", bias, name=part + suffix))
            if _projected(layer):
                blocks.append(Block(f"weight_hr{suffix}", None, name="hr" + suffix))
        return blocks

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        x, lengths, order = _padded(layer, call.argument(0, "input"))  # [time, batch, d]
        hidden, cell = _initial(layer, call.argument(1, "hx"), x, order)
        valid = torch.arange(len(x), device=x.device)[:, None] < lengths
        runs = iter(zip(_suffixes(layer), hidden, cell))
        for _ in range(layer.num_layers):
            outputs = []
            for backwards in (False, True) if layer.bidirectional else (False,):
                suffix, h, c = next(runs)
                states, inner, before = _run(layer, suffix, x, valid, h, c, backwards)
                outputs.append(states)
                yield "ih" + suffix, sample(x[valid])
                yield "hh" + suffix, sample(before[valid])
                if _projected(layer):
                    yield "hr" + suffix, sample(inner[valid])
            x = torch.cat(outputs, -1)


@register(nn.RNNCell, nn.LSTMCell, nn.GRUCell)
class CellRule:
    def blocks(self, layer: Any) -> list[Block]:
        return [
            Block(f"weight_{part}", f"bias_{part}" if layer.bias else None, name=part)
            for part in ("ih", "hh")
        ]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        x, hidden = call.argument(0, "input"), call.argument(1, "hx")
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        if hidden is None:
            hidden = x.new_zeros(*x.shape[:-1], layer.hidden_size)
        yield "ih", sample(x)
        yield "hh", sample(hidden)


def _run(
    layer: Any, suffix: str, x: Tensor, valid: Tensor, hidden: Tensor, cell: Tensor, backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return states, states before the projection, and previous states `[time, batch, ...]`."""
    names = ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")
    parameters: list[Any] = [getattr(layer, name + suffix, None) for name in names]
    w_ih, w_hh, w_hr, b_ih, b_hh = parameters
    driven = nn.functional.linear(x, w_ih, b_ih)
    states, inners, befores = ([hidden] * len(x) for _ in range(3))
    for t in reversed(range(len(x))) if backwards else range(len(x)):
        befores[t] = hidden
        recalled = nn.functional.linear(hidden, w_hh, b_hh)
        new, new_cell = _cell(layer, driven[t], recalled, hidden, cell)
        inners[t] = new
        new = new if w_hr is None else new @ w_hr.mT
        active = valid[t][:, None]  # sequences that have ended, or not begun, keep their state
        hidden, cell = torch.where(active, new, hidden), torch.where(active, new_cell, cell)
        states[t] = hidden
    return torch.stack(states), torch.stack(inners), torch.stack(befores)


def _cell(
    layer: Any, driven: Tensor, recalled: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the new hidden state before the projection, and the new cell state."""
    if isinstance(layer, nn.LSTM):
        i, f, g, o = (driven + recalled).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    if isinstance(layer, nn.GRU):
        (r, z, n), (hr, hz, hn) = driven.chunk(3, -1), recalled.chunk(3, -1)
        z = (z + hz).sigmoid()
        return (1 - z) * (n + (r + hr).sigmoid() * hn).tanh() + z * hidden, cell
    total = driven + recalled
    return (total.tanh() if layer.nonlinearity == "tanh" else total.relu()), cell


def _padded(layer: Any, x: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return x as [time, batch, d], lengths [batch], and the order of the batch or None."""
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(PackedSequence(x.data, x.batch_sizes))
        return padded, lengths.to(padded.device), x.sorted_indices
    if x.ndim == 2:
        x = x[:, None]
    elif layer.batch_first:
        x = x.transpose(0, 1)
    return x, torch.full((x.shape[1],), len(x), device=x.device), None


def _initial(layer: Any, given: Any, x: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the initial hidden and cell states `[layers * directions, batch, size]`."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    size = layer.proj_size if _projected(layer) else layer.hidden_size
    cell = x.new_zeros(count, x.shape[1], layer.hidden_size)
    hidden = x.new_zeros(count, x.shape[1], size)
    if given is not None:
        hidden, cell = given if isinstance(given, tuple) else (given, cell)
        if hidden.ndim == 2:
            hidden, cell = hidden[:, None], cell if cell.ndim == 3 else cell[:, None]
        if order is not None:
            hidden, cell = hidden[:, order], cell[:, order]
    return hidden, cell


def _suffixes(layer: Any) -> list[str]:
    ways = ("", "_reverse") if layer.bidirectional else ("",)
    return [f"_l{depth}{way}" for depth in range(layer.num_layers) for way in ways]


def _projected(layer: Any) -> bool:
    return isinstance(layer, nn.LSTM) and layer.proj_size > 0
