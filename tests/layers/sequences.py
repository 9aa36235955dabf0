"""Layers that see sequences, and models made of several layers."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

from layers import references as ref
from layers.case import Case, Draw, Feed, only, shaped
from layers.references import Inputs


def attention_cases() -> list[Case]:
    def add(name: str, feed: Feed, *, empty: bool = True, **options: Any) -> Case:
        def make() -> nn.Module:
            return nn.MultiheadAttention(12, 3, **options)

        return Case(f"attention{name}", make, feed, ref.attention_rows, empty=empty)

    def itself(x: Tensor, **kwargs: Any) -> Inputs:
        return only(x, x, x, **kwargs)

    def time(d: Draw, length: int, size: int = 12) -> Tensor:
        return d.normal(length, d.batch, size)

    def padded(d: Draw) -> Inputs:
        hidden = torch.tensor([[False, False, True], [False, True, True]])[: d.batch]
        return itself(d.x(3, 12), key_padding_mask=hidden, need_weights=False)

    def masked(d: Draw) -> Inputs:
        x = time(d, 3)
        return only(x, x, x, None, True, d.normal(d.batch * 3, 3, 3))

    def separate(d: Draw) -> Inputs:
        return only(query=d.x(2, 12), key=d.x(3, 9), value=d.x(3, 10))

    def causal(d: Draw) -> Inputs:
        mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
        return itself(d.x(3, 12), attn_mask=mask, is_causal=True, need_weights=False)

    return [
        add("", lambda d: itself(time(d, 3))),
        add("-cross", lambda d: only(time(d, 2), time(d, 3), time(d, 3))),
        add("-separate", separate, kdim=9, vdim=10, batch_first=True),
        add("-unbatched", lambda d: itself(d.normal(5, 12)), empty=False),
        add("-padding", padded, batch_first=True, empty=False),
        add("-mask", masked),
        add("-causal", causal, batch_first=True),
        add("-zero", lambda d: itself(time(d, 3)), add_zero_attn=True),
    ]


def recurrent_cases() -> list[Case]:
    def add(
        name: str, kind: Callable[..., nn.Module], feed: Feed, *, empty: bool = True, **options: Any
    ) -> Case:
        def make() -> nn.Module:
            return kind(7, 9, **options)

        return Case(name, make, feed, ref.recurrent_rows, empty=empty)

    def time(d: Draw) -> Inputs:
        return only(d.normal(3, d.batch, 7))

    def packed(d: Draw) -> Inputs:
        return only(pack_sequence([d.normal(n, 7) for n in (3, 2, 1)]))

    def unsorted(d: Draw) -> Inputs:
        lengths = torch.tensor([1, 3, 1, 2])
        x = pack_padded_sequence(d.normal(3, 4, 7), lengths, enforce_sorted=False)
        return only(x, (d.normal(2, 4, 8), d.normal(2, 4, 9)))

    def started(d: Draw) -> Inputs:
        return only(d.normal(3, 7), (d.normal(2, 9), d.normal(2, 9)))

    deep: Any = {"num_layers": 2, "bidirectional": True, "batch_first": True, "dropout": 0.2}
    projected: Any = {"proj_size": 8, "bidirectional": True}
    return [
        add("rnn-relu-no-bias", nn.RNN, time, nonlinearity="relu", bias=False),
        add("lstm", nn.LSTM, time),
        add("lstm-deep", nn.LSTM, lambda d: only(d.x(3, 7)), **deep),
        add("lstm-unbatched-start", nn.LSTM, started, num_layers=2, empty=False),
        add("lstm-packed", nn.LSTM, packed, bidirectional=True, empty=False),
        add("lstm-projected-packed-start", nn.LSTM, unsorted, empty=False, **projected),
        add("gru", nn.GRU, lambda d: only(d.normal(3, d.batch, 7), hx=d.normal(1, d.batch, 9))),
    ]


def cell_cases() -> list[Case]:
    def add(name: str, make: Callable[[], nn.Module], feed: Feed, empty: bool = True) -> Case:
        return Case(name, make, feed, ref.cell_rows, empty=empty)

    return [
        add("rnn-cell", lambda: nn.RNNCell(7, 9), shaped(7)),
        add(
            "rnn-cell-relu",
            lambda: nn.RNNCell(7, 9, nonlinearity="relu", bias=False),
            lambda d: only(d.x(7), d.x(9)),
        ),
        add("lstm-cell", lambda: nn.LSTMCell(7, 9), lambda d: only(d.x(7), (d.x(9), d.x(9)))),
        add("lstm-cell-unbatched", lambda: nn.LSTMCell(7, 9), lambda d: only(d.normal(7)), False),
        add("gru-cell", lambda: nn.GRUCell(7, 9), lambda d: only(input=d.x(7), hx=d.x(9))),
    ]


def composite_cases() -> list[Case]:
    """Models of several layers: no reference by hand, but all that holds for any layer."""

    def encoder() -> nn.Module:
        return nn.TransformerEncoderLayer(12, 2, 16, 0.1, batch_first=True)

    def translate(d: Draw) -> Inputs:
        mask = nn.Transformer.generate_square_subsequent_mask(2, dtype=d.dtype)
        return only(d.x(3, 12), d.x(2, 12), tgt_mask=mask, tgt_is_causal=True)

    def hidden_zero(d: Draw) -> Inputs:
        """Without weights, torch hides the extra zero key from causal attention."""
        x, mask = d.normal(3, d.batch, 12), torch.ones(3, 3, dtype=torch.bool).triu(1)
        return only(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)

    def cnn() -> nn.Module:
        layers = nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6), nn.Tanh(), nn.AvgPool2d(2)
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(6, 3))

    def both() -> nn.Module:
        return nn.Transformer(12, 2, 1, 1, 16, batch_first=True, dropout=0.0)

    attention = partial(nn.MultiheadAttention, 12, 3, add_zero_attn=True)
    return [
        Case("attention-hidden-zero", attention, hidden_zero),
        Case("encoder-layer", encoder, shaped(3, 12)),
        Case("transformer", both, translate),
        Case("cnn", cnn, lambda d: only(d.normal(2, 8, 2, 2)[: d.batch])),
    ]
