"""Parts of drawn networks: layers of all kinds, each from `[n, time, width]` to that form."""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

WIDTHS = (24, 32, 40)

Part = tuple[nn.Module, str]


class Form(NamedTuple):
    """The shape of one sample between two parts."""

    time: int
    width: int


class Apply(nn.Module):
    """A layer and what is done around it."""

    def __init__(self, layer: nn.Module, how: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self._how = layer, how

    def forward(self, x: Tensor) -> Tensor:
        return self._how(self.layer, x)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def activation(draw: Random) -> nn.Module:
    kinds: list[Callable[[], nn.Module]] = [nn.Tanh, nn.GELU, nn.ReLU, nn.SiLU, nn.LeakyReLU]
    return draw.choice(kinds)()


def coin(draw: Random, chance: float = 0.5) -> bool:
    return draw.random() < chance


def dense(draw: Random, form: Form) -> Part:
    layer = nn.Linear(form.width, draw.choice(WIDTHS), bias=coin(draw, 0.8))
    return nn.Sequential(layer, activation(draw)), "Linear"


def residual(draw: Random, form: Form) -> Part:
    width, hidden = form.width, draw.choice(WIDTHS)
    inner = [nn.Linear(width, hidden), activation(draw), nn.Linear(hidden, width)]
    if coin(draw):
        inner.insert(0, nn.LayerNorm(width, bias=coin(draw)))
    return Residual(nn.Sequential(*inner)), "residual"


def tied(draw: Random, form: Form) -> Part:
    """Two layers with one weight, and biases of their own."""
    first, second = (nn.Linear(form.width, form.width, bias=coin(draw, 0.7)) for _ in range(2))
    second.weight = first.weight
    if coin(draw, 0.3):
        second.bias = first.bias
    return nn.Sequential(first, activation(draw), second, activation(draw)), "tied Linear"


def norm(draw: Random, form: Form) -> Part:
    width, kind = form.width, draw.choice(["layer", "rms", "batch", "group", "instance"])
    if kind == "layer":
        return nn.LayerNorm(width, elementwise_affine=coin(draw, 0.9)), "LayerNorm"
    if kind == "rms":
        return nn.RMSNorm(width), "RMSNorm"
    layer: nn.Module
    if kind == "batch":
        momentum, tracked = draw.choice([0.1, 0.5, None]), coin(draw, 0.9)
        layer = nn.BatchNorm1d(width, momentum=momentum, track_running_stats=tracked)
    elif kind == "group":
        layer = nn.GroupNorm(draw.choice([1, 2, 4, width]), width)
    else:
        layer = nn.InstanceNorm1d(width, affine=True, track_running_stats=coin(draw, 0.3))
    return Apply(layer, _channels_first), f"{kind} norm"


def _channels_first(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


def conv1d(draw: Random, form: Form) -> Part:
    kernel, dilation = draw.choice([(1, 1), (2, 1), (3, 1), (2, 2)])
    mode: Any = draw.choice(["zeros", "circular", "reflect", "replicate"])
    padding: Any = "same" if coin(draw, 0.3) else draw.choice([1, 2])
    if padding == "same" or form.time < 3:
        padding, mode = draw.choice([(kernel - 1) * dilation, "same"]), "zeros"
    groups = draw.choice([1, 1, *(g for g in (2, 4, 8) if form.width % g == 0)])
    stride = 1 if padding == "same" else draw.choice([1, 2])
    width, bias = draw.choice(WIDTHS), coin(draw, 0.8)
    layer = nn.Conv1d(
        form.width, width, kernel, stride, padding, dilation, groups, bias, padding_mode=mode
    )
    how = f"Conv1d(kernel {kernel}, stride {stride}, {padding=}, {dilation=}, {groups=}, {mode})"
    return nn.Sequential(Apply(layer, _channels_first), activation(draw)), how


def attention(draw: Random, form: Form) -> Part:
    width, cross = form.width, coin(draw)
    apart = {"kdim": width // 2, "vdim": width // 2} if cross and coin(draw) else {}
    batch_first, bias = coin(draw), coin(draw, 0.8)
    layer = nn.MultiheadAttention(
        width, draw.choice([1, 2, 4]), bias=bias, dropout=0.1, batch_first=batch_first, **apart
    )
    causal, weights, zero = coin(draw, 0.3), coin(draw), coin(draw, 0.2)
    layer.add_zero_attn = zero

    def how(layer: nn.Module, x: Tensor) -> Tensor:
        query = x if batch_first else x.transpose(0, 1)
        keys = query
        if cross:
            keys = query.flip(1 if batch_first else 0)[..., : width // 2 if apart else width]
        options: dict[str, Any] = {"need_weights": weights}
        if causal:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            options |= {"attn_mask": mask, "is_causal": not zero}
        result: Tensor = layer(query, keys, keys, **options)[0]
        return x + (result if batch_first else result.transpose(0, 1))

    return Apply(layer, how), f"attention(cross={cross}, {causal=}, {batch_first=}, {bias=})"


def transformer(draw: Random, form: Form) -> Part:
    inner, rate = draw.choice(WIDTHS), draw.choice([0.0, 0.2])
    options: dict[str, Any] = {"batch_first": True, "norm_first": coin(draw)}
    options |= {"activation": draw.choice(["relu", "gelu"]), "bias": coin(draw, 0.8)}
    if coin(draw, 0.7):
        layer: nn.Module = nn.TransformerEncoderLayer(form.width, 2, inner, rate, **options)
        return layer, "TransformerEncoderLayer"
    layer = nn.TransformerDecoderLayer(form.width, 2, inner, rate, **options)
    return Apply(layer, lambda decoder, x: decoder(x, x.flip(1))), "TransformerDecoderLayer"


def recurrent(draw: Random, form: Form) -> Part:
    kind, depth, both = draw.choice([nn.RNN, nn.LSTM, nn.GRU]), draw.choice([1, 1, 2]), coin(draw)
    options: dict[str, Any] = {"dropout": 0.1 * (depth - 1), "bidirectional": both}
    if kind is nn.LSTM and coin(draw, 0.2):
        options["proj_size"] = 12
    if kind is nn.RNN:
        options["nonlinearity"] = draw.choice(["tanh", "relu"])
    hidden, bias = draw.choice([16, 24]), coin(draw, 0.8)
    layer = kind(form.width, hidden, depth, bias=bias, batch_first=True, **options)
    return Apply(layer, lambda rnn, x: rnn(x)[0]), f"{kind.__name__}({depth=}, {both=}, {bias=})"


def cell(draw: Random, form: Form) -> Part:
    kind = draw.choice([nn.RNNCell, nn.LSTMCell, nn.GRUCell])

    def how(layer: nn.Module, x: Tensor) -> Tensor:
        state, hidden = None, []
        for moment in x.unbind(1):
            state = layer(moment, state)
            hidden.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(hidden, 1)

    return Apply(kind(form.width, 24, bias=coin(draw, 0.8)), how), kind.__name__


def dropout(draw: Random, form: Form) -> Part:
    return nn.Dropout(draw.choice([0.1, 0.5])), "Dropout"


PARTS = [dense, dense, residual, tied, norm, norm, conv1d, conv1d, attention, transformer]
PARTS += [recurrent, cell, dropout]
