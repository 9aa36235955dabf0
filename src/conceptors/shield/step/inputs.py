"""Projecting what enters a layer instead of its gradient: `Shield(..., project="inputs")`.

dW = gᵀ x, so dW F = gᵀ (x F): for a batch of fewer rows x than the layer has outputs, projecting
the rows is less work. A forward hook puts a node of its own into autograd's graph that computes the
same output and input gradient, and the projected weight gradient.

Steps are then left alone, so this is for plain and momentum SGD without weight decay, and the
caller promises that gradients are what backward passes made of them: a penalty on the weights, or
anything else added to `.grad`, is not projected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from conceptors._internal.precision import exactly, rounded, split_tf32, tensor_cores
from conceptors.layers.base import owner_of
from conceptors.shield.blocks import WeightBlock, is_sharded
from conceptors.shield.step.free_space import FreeSpace

_WIDE = 512  # inputs from which it pays to split F in two


class FreeRows:
    """Rows x `[n, width]` of a layer's inputs, and the constant 1 of its bias, times F.

    Of g groups, rows are `[g, n, width]`. On a GPU, large ones are multiplied on tensor cores, with
    F in two parts that TF32 holds. x itself may be rounded: what comes of it is in the free space
    all the same.
    """

    def __init__(
        self, free: FreeSpace, width: int, grouped: bool = False, *, split: bool | None = None
    ) -> None:
        """`split`: whether F is; None where it pays."""
        self._bias = free.dim > width
        self._thin = free.is_thin
        self._times: Any = torch.bmm if grouped else torch.mm
        self._add: Any = torch.baddbmm if grouped else torch.addmm
        if self._thin:
            left, right = free.vectors, -(free.vectors * free.gain(once=True)).mT
            blocks = [left[:, :width], left[:, width:], right[..., :width], right[..., width:]]
        else:
            whole = free.dense()
            rows, last = whole[:, :width], whole[:, width:]
            blocks = [rows[..., :width], last[..., :width], rows[..., width:], last[..., width:]]
        # one matrix at a time is faster than a batch of one
        self._blocks = [(block if grouped else block[0]).contiguous() for block in blocks]
        inner = self._blocks[0]
        pays = inner.is_cuda and inner.dtype == torch.float32 and width >= _WIDE
        self._halves: Tensor | None = None  # [high | low], F = high + low: one product for both
        if not self._thin and (pays if split is None else split):
            self._halves = self._blocks[0] = split_tf32(inner)  # the whole is not needed any more
        self._room: dict[str, Tensor] = {}

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(rows as x, ones `[..., n]` if there is a bias), in memory used again next time."""
        x = self._seen(x)
        inner, last, outer, corner = self._blocks
        if not self._thin:
            rows = self._product("rows", last, x, inner)
            return rows, ((x @ outer) + corner)[..., 0] if self._bias else None
        along = self._product("along", last, x, inner)
        free: Tensor = self._add(x, along, outer, out=self._space("rows", x, outer))
        return free, 1 + (along @ corner)[..., 0] if self._bias else None

    def gradients(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """gᵀ (x F), for weight and bias."""
        g = self._seen(g)
        rows, ones = self(x)
        bias = None if ones is None else (g.mT @ ones.unsqueeze(-1)).squeeze(-1)
        return self._gathered(g, rows), bias

    def _seen(self, x: Tensor) -> Tensor:
        """x as tensor cores see it, for weight and bias to be made of the same numbers."""
        if self._halves is None or not self._bias:
            return x
        return x - (x - rounded(x)).detach() if torch.is_grad_enabled() else rounded(x)

    def _gathered(self, g: Tensor, rows: Tensor) -> Tensor:
        """gᵀ rows, as exact in the rows as they are; g may be rounded."""
        if self._halves is None:
            return g.mT @ rows
        high = rounded(rows)
        parts = torch.cat([high, rows - high], -2)
        with tensor_cores():
            found: Tensor = torch.cat([g, g], -2).mT @ parts
        return found

    def _product(self, name: str, last: Tensor, x: Tensor, factor: Tensor) -> Tensor:
        """x @ factor, and the share of the constant 1 if there is a bias."""
        if self._halves is not None:
            with tensor_cores():
                both = self._times(x, self._halves)
            high, low = both.chunk(2, -1)
            sums: Tensor = high + low
            return sums + last if self._bias else sums
        out = self._space(name, x, factor)
        found: Tensor = (
            self._add(last, x, factor, out=out) if self._bias else self._times(x, factor, out=out)
        )
        return found

    def _space(self, name: str, x: Tensor, factor: Tensor) -> Tensor | None:
        """`[n, columns of the factor]`, kept for the largest n: new memory is dear on the CPU."""
        if torch.is_grad_enabled() or x.ndim > 2:
            return None
        held = self._room.get(name)
        if held is None or len(held) < len(x):
            held = self._room[name] = x.new_empty(len(x), factor.shape[-1])
        return held[: len(x)]


class InputProjection:
    """The way into one linear layer, or into several that are one layer in groups."""

    def __init__(self, layer: Any, free: FreeSpace) -> None:
        self._layer = layer
        self._grouped = layer.weight.ndim == 3
        self._parameters = [p for p in (layer.weight, layer.bias) if p is not None]
        self._free = FreeRows(free, layer.weight.shape[-1], self._grouped)
        self._handle = layer.register_forward_hook(_Hook(self), prepend=True)
        self._open = True

    def close(self) -> None:
        """Take the hook off the layer."""
        self._handle.remove()
        self._open = False

    def reroute(self, args: Any, output: Any) -> Tensor | None:
        """The layer's output with the projecting node behind it; None to leave it as it is."""
        if torch.compiler.is_compiling():  # first, as what follows cannot be compiled
            raise RuntimeError(
                'project="inputs" does not go with torch.compile; make the shield without it'
            )
        layer = self._layer
        if not self._open or not _recorded(args, layer, output):
            return None
        present = [p for p in (layer.weight, layer.bias) if p is not None]
        if any(p is not q for p, q in zip(present, self._parameters)):
            return None  # torch.func.functional_call puts others in their place
        route: Any = _Projected.apply
        found: Tensor = route(output.detach(), args[0], layer.weight, layer.bias, self)
        return found

    def gradients(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """gᵀ (x F), for weight and bias; exact, as rounding would leave the free space."""
        if not self._grouped:
            g, x = g.flatten(0, -2), x.flatten(0, -2)
        with exactly(gradients=True):
            return self._free.gradients(g, x)


class _Projected(torch.autograd.Function):
    """y = W x + b, computed already; backward with projected weight gradients."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, x: Tensor, weight: Tensor, bias: Any, input_projection: InputProjection
    ) -> Tensor:
        ctx.mark_dirty(y)
        ctx.save_for_backward(x, weight)
        ctx.input_projection = input_projection
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,) = grads
        x, weight = ctx.saved_tensors
        inward = g @ weight if ctx.needs_input_grad[1] else None
        return None, inward, *ctx.input_projection.gradients(g, x), None


class _Hook:
    """What the layer holds. Copies and pickles of the model get a hook that does nothing."""

    def __init__(self, input_projection: InputProjection) -> None:
        self._inlet = input_projection

    def __call__(self, layer: nn.Module, args: Any, output: Any) -> Tensor | None:
        return self._inlet.reroute(args, output)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _inert, ()


def _nothing(*_: Any) -> None:
    pass


def _inert() -> Any:
    return _nothing


def fits(site: WeightBlock, active: list[nn.Parameter]) -> bool:
    """Whether a site is one plain product in full precision, all of it trained."""
    if len(site.sources) != 1:
        return False
    layer: Any = site.sources[0].layer
    is_linear = isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
    return (
        (is_linear or (site.block.is_product and owner_of(layer) is type(layer)))
        and layer.weight is site.weight
        and {id(p) for p in active} == {id(p) for p in layer.parameters(recurse=False)}
        and not any(is_sharded(p.data) for p in active)
        and {p.dtype for p in active} in ({torch.float32}, {torch.float64})
        and not (dist.is_available() and dist.is_initialized())  # gradients are of all processes
    )


def _recorded(args: Any, layer: nn.Module, output: Any) -> bool:
    """Whether a call is an ordinary product with rows, recorded by autograd."""
    if len(args) != 1 or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
        return False
    return (
        {args[0].dtype, output.dtype} == {p.dtype for p in layer.parameters(recurse=False)}
        and all(p.requires_grad for p in layer.parameters(recurse=False))
        and torch.is_grad_enabled()
        and output.grad_fn is not None
        and not _transformed()
    )


def _transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    stack = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    level = torch.autograd.forward_ad._current_level
    return level >= 0 or (stack is not None and stack() is not None)
