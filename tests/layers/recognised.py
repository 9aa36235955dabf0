"""Layers of unknown classes, recognised by what they do."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from layers.case import Case, Draw, Feed, half_silent, only, shaped, silence
from layers.references import Inputs


class Norm(nn.Module):
    """RMSNorm as language models write it; `offset` 1 as Gemma does, `centred` as Cohere does."""

    def __init__(self, dim: int, offset: float = 0.0, centred: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.offset, self.centred = offset, centred

    def forward(self, hidden: Tensor, gate: Tensor | None = None) -> Tensor:
        hidden = hidden if gate is None else hidden * functional.silu(gate)
        hidden = hidden - hidden.mean(-1, keepdim=True) if self.centred else hidden
        size = hidden.pow(2).mean(-1, keepdim=True)
        return (self.offset + self.weight) * (hidden * torch.rsqrt(size + 1e-6))


class Formula(nn.Module):
    """A formula of the input and one parameter."""

    def __init__(self, formula: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.rand(shape) + 0.5)
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        return self.formula(x, self.kernel)


class Transposed(nn.Module):
    """GPT-2's Conv1D."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], -1) if x.numel() else flat


class Router(nn.Module):
    def __init__(self, dim: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, dim))

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = functional.linear(hidden.reshape(-1, hidden.shape[-1]), self.weight)
        shares, chosen = torch.topk(logits.softmax(-1), 2, dim=-1)
        return logits, shares / shares.sum(-1, keepdim=True), chosen


class Experts(nn.Module):
    """As transformers 5 stores them."""

    def __init__(self, dim: int, inner: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, 2 * inner, dim) / 4)
        self.down_proj = nn.Parameter(torch.randn(experts, dim, inner) / 4)
        self.act_fn = nn.SiLU()

    def forward(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        result = torch.zeros_like(hidden)
        for i in range(len(self.down_proj)):
            token, place = torch.where(chosen == i)
            gate, up = functional.linear(hidden[token], self.gate_up_proj[i]).chunk(2, dim=-1)
            outputs = functional.linear(self.act_fn(gate) * up, self.down_proj[i])
            result.index_add_(0, token, outputs * shares[token, place, None])
        return result


class TransposedExperts(nn.Module):
    """With biases, weights `[experts, in, out]`, and an unusual gate."""

    is_transposed = True

    def __init__(self, dim: int, inner: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, dim, 2 * inner) / 4)
        self.gate_up_proj_bias = nn.Parameter(torch.randn(experts, 2 * inner) / 4)
        self.down_proj = nn.Parameter(torch.randn(experts, inner, dim) / 4)
        self.down_proj_bias = nn.Parameter(torch.randn(experts, dim) / 4)

    def _apply_gate(self, x: Tensor) -> Tensor:
        gate, up = x[..., ::2], x[..., 1::2]
        return (up + 1) * gate * torch.sigmoid(gate)

    def forward(self, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        up = torch.einsum("nd,edo->neo", hidden, self.gate_up_proj) + self.gate_up_proj_bias
        down = torch.einsum("nei,eid->ned", self._apply_gate(up), self.down_proj)
        every = down + self.down_proj_bias  # [n, experts, dim]
        picked = every.take_along_dim(chosen[..., None], 1)
        return (picked * shares[..., None]).sum(1)


class SortedExperts(nn.Module):
    """As Llama 4 has them: every expert's rows in turn, zero where they are not for it."""

    def __init__(self, dim: int, inner: int, experts: int) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, dim, 2 * inner) / 4)
        self.down_proj = nn.Parameter(torch.randn(experts, inner, dim) / 4)
        self.act_fn = nn.SiLU()

    def forward(self, hidden: Tensor) -> Tensor:
        each = hidden.view(len(self.down_proj), -1, hidden.shape[-1])
        gate, up = torch.bmm(each, self.gate_up_proj).chunk(2, dim=-1)
        return torch.bmm(up * self.act_fn(gate), self.down_proj).view(hidden.shape)


def recognised_cases() -> list[Case]:
    def scale(name: str, make: Callable[[], nn.Module]) -> Case:
        return Case(name, make, shaped(3, 8), outputs=_channels, old=half_silent(8))

    def gated(draw: Draw) -> Inputs:
        return only(draw.x(3, 8), draw.x(3, 8))

    def sent(draw: Draw) -> Inputs:
        """Every token goes to two of three experts, in turn."""
        n = torch.arange(3 * draw.batch)
        chosen = torch.stack([n % 3, (n + 1) % 3], -1)
        return only(draw.normal(len(n), 9), chosen, draw.normal(len(n), 2).softmax(-1))

    def in_turn(draw: Draw) -> Inputs:
        """Rows of three experts, of which every third is zero."""
        n = 3 * draw.batch
        return only(draw.normal(3 * n, 9) * (torch.arange(3 * n) % 3 > 0)[:, None])

    def product(name: str, make: Callable[[], nn.Module], feed: Feed, **more: Any) -> Case:
        return Case(name, make, feed, outputs=more.pop("outputs", _same), **more)

    return [
        scale("like-rms-norm", lambda: Norm(8)),
        scale("like-layer-norm", lambda: Norm(8, centred=True)),
        scale("layer-scale", lambda: Formula(torch.mul, 8)),
        Case("gain", lambda: Formula(torch.mul, 1), shaped(3, 8), outputs=_whole, old=silence(8)),
        Case("like-rms-norm-gated", lambda: Norm(8), gated, outputs=_channels, old=_silent),
        product("like-conv1d", lambda: Transposed(9, 5), shaped(2, 9), empty=False),
        product("like-linear", lambda: Formula(lambda x, w: x @ w.T, 5, 9), shaped(2, 9)),
        product("router", lambda: Router(9, 3), shaped(2, 9), outputs=_logits),
        Case("experts", lambda: Experts(9, 7, 3), sent),
        Case("experts-sorted", lambda: SortedExperts(9, 7, 3), in_turn),
        Case("experts-transposed", lambda: TransposedExperts(9, 7, 3), sent),
    ]


def _whole(_layer: Any, output: Tensor) -> Tensor:
    return output.reshape(1, -1, 1)


def _silent(draw: Draw) -> Inputs:
    x = half_silent(8)(draw).args[0]
    return only(x, draw.x(8))


def _same(_layer: Any, output: Tensor) -> Tensor:
    return output.reshape(1, -1, output.shape[-1])


def _logits(_layer: Any, output: tuple[Tensor, ...]) -> Tensor:
    return output[0][None]


def _channels(_layer: Any, output: Tensor) -> Tensor:
    return output.reshape(-1, output.shape[-1]).mT[..., None]
