"""Projecting what enters a layer instead of its gradient, where that is less work.

dW = gᵀ x, so dW (I - A) = gᵀ (x (I - A)): for a batch of fewer rows x than the layer has outputs,
projecting the rows is the cheaper way. A forward hook puts a node of its own into autograd's graph
that computes the same output and input gradient, and the projected weight gradient.

A gradient may have other parts: a penalty on the weights, another use of them, something added by
hand. A step therefore trusts a gradient only if it still gives the product dW z with a fixed random
vector z that was noted in every backward pass, up to a common factor (accumulation, clipping, loss
scaling). If it is the very tensor that the backward pass made, unchanged as far as PyTorch knows
(changes through `.data` are not counted), some rows are enough.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from conceptors.projection import FreeRows, Projector
from conceptors.sites import Site, is_sharded

WORTH = 2**16  # numbers in a weight from which on the detour pays
_SOME = 16  # rows of a gradient, spread evenly


class Inlet:
    """The way into one linear layer, on the CPU."""

    def __init__(self, site: Site, projector: Projector) -> None:
        layer = site.sources[0].layer
        assert isinstance(layer, nn.Linear)
        self.projector = projector
        self._layer, self._outputs, self._width = layer, layer.out_features, layer.in_features
        self._bias = layer.bias is not None
        self._parameters = [p for p in (layer.weight, layer.bias) if p is not None]
        self._usable = True
        self._noted: Tensor | None = None  # dW z of all backward passes since gradients were zero
        self._pass = -1  # the backward pass that was noted last
        self._made: dict[int, tuple[int, int]] = {}  # address and version of gradients just made
        self._pure: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # those that arrived alone
        wide = projector.dim
        generator = torch.Generator().manual_seed(wide)
        dtype = layer.weight.dtype
        probe = torch.randn(wide, generator=generator, dtype=torch.float64).to(dtype)
        self._probe, self._bias_probe = probe[: self._width], probe[self._width :]
        self._spread = slice(None, None, -(-self._outputs // _SOME))
        self._free = FreeRows(projector, self._width, group=0)
        hook = layer.register_forward_hook(_Hook(self), prepend=True)
        self._handles = [hook] + [
            parameter.register_post_accumulate_grad_hook(self._arrived)
            for parameter in layer.parameters(recurse=False)
        ]

    def serves(self, site: Site, projector: Projector) -> bool:
        return self.projector is projector and self._layer is site.sources[0].layer

    def close(self) -> None:
        """Take the hooks off the layer and its parameters."""
        for handle in self._handles:
            handle.remove()
        self._usable = False

    def confirms(self) -> bool:
        """Whether the layer's gradients are what backward passes made, hence in the free space."""
        noted = self._noted
        weight, bias = self._layer.weight.grad, self._layer.bias.grad if self._bias else None
        if noted is None or weight is None or (self._bias and bias is None):
            return False
        if all(self._is_pure(p) for p in self._parameters):
            # changes through `.data` are not counted: look at some rows, and at a large one
            top = int(noted.argmax())
            if all(self._agrees(at, noted) for at in (self._spread, slice(top, top + 1))):
                return True
        found = self._along(weight, bias)
        square = float(noted @ noted)
        factor = float(found @ noted) / square if square else 0.0
        self._usable = _close(found, factor * noted)
        return self._usable

    def _agrees(self, at: slice, noted: Tensor) -> bool:
        """Whether some rows of the gradient give what was noted; few numbers, so as plain ones."""
        parts = [p.grad[at] for p in self._parameters if p.grad is not None]
        found = self._along(parts[0], parts[1] if self._bias else None).tolist()
        wanted = noted[at].tolist()
        allowed = 200 * torch.finfo(noted.dtype).eps * max(map(abs, found))
        return all(abs(one - other) <= allowed for one, other in zip(found, wanted))

    def _along(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """dW z of some rows."""
        found = torch.mv(weight, self._probe)
        return found if bias is None else torch.addcmul(found, bias, self._bias_probe)

    def reroute(self, args: Any, output: Any) -> Tensor | None:
        """The layer's output with the projecting node behind it; None to leave it as it is."""
        if torch.compiler.is_compiling():  # first, as what follows cannot be compiled
            return None
        layer = self._layer
        if not self._usable or len(args) != 1 or not _plain(args[0], layer, output):
            return None
        weight, bias = layer.weight, layer.bias
        if weight is not self._parameters[0] or (
            bias is not None and bias is not self._parameters[1]
        ):
            return None  # torch.func.functional_call puts others in their place
        if not weight.requires_grad or (bias is not None and not bias.requires_grad):
            return None
        if len(args[0]) >= self._outputs or output.dtype != self._probe.dtype:
            return None
        route: Any = _Projected.apply
        found: Tensor = route(output.detach(), args[0], weight, bias, self)
        return found

    def gradients(self, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """gᵀ (x (I - A)), for weight and bias."""
        rows, ones = self._free(x, reuse=True)
        along = torch.mv(rows, self._probe)
        bias = None
        if ones is not None:
            bias = torch.mv(g.mT, ones[:, 0])
            along = torch.addcmul(along, ones[:, 0], self._bias_probe)
        self._note(torch.mv(g.detach().mT, along.detach()))
        weight = g.mT @ rows
        self._made[id(self._layer.weight)] = (weight.data_ptr(), weight._version)
        if bias is not None:
            self._made[id(self._layer.bias)] = (bias.data_ptr(), bias._version)
        return weight, bias

    def _arrived(self, parameter: Tensor) -> None:
        """After a backward pass: see whether a gradient is all that, and what, was made here."""
        made, gradient = self._made.pop(id(parameter), None), parameter.grad
        self._pure.pop(id(parameter), None)
        if gradient is not None and made == (gradient.data_ptr(), gradient._version):
            self._pure[id(parameter)] = (weakref.ref(gradient), gradient._version)

    def _is_pure(self, parameter: Tensor) -> bool:
        """Whether a parameter's gradient is what one backward pass made, and untouched."""
        held, version = self._pure.get(id(parameter), (None, -1))
        gradient = parameter.grad
        return held is not None and held() is gradient and version == gradient._version  # type: ignore[union-attr]

    def _note(self, part: Tensor) -> None:
        number = torch._C._current_graph_task_id()
        if number != self._pass:
            gradient = self._layer.weight.grad
            if gradient is None or not bool(gradient.any()):
                self._noted = None
            self._pass = number
        self._noted = part if self._noted is None else self._noted + part


class _Projected(torch.autograd.Function):
    """y = W x + b, computed already; backward with projected weight gradients."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, weight: Tensor, bias: Any, inlet: Inlet) -> Tensor:
        ctx.mark_dirty(y)
        ctx.save_for_backward(x, weight)
        ctx.inlet = inlet
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,) = grads
        x, weight = ctx.saved_tensors
        inward = g @ weight if ctx.needs_input_grad[1] else None
        return None, inward, *ctx.inlet.gradients(g, x), None


class _Hook:
    """What the layer holds. Copies and pickles of the model get a hook that does nothing."""

    def __init__(self, inlet: Inlet) -> None:
        self._inlet = inlet

    def __call__(self, layer: nn.Module, args: Any, output: Any) -> Tensor | None:
        return self._inlet.reroute(args, output)

    def __reduce__(self) -> tuple[Callable[[], Any], tuple[()]]:
        return _inert, ()


def _nothing(*_: Any) -> None:
    pass


def _inert() -> Any:
    return _nothing


def fits(site: Site, active: list[nn.Parameter]) -> bool:
    """Whether a site is one plain Linear layer on the CPU, all of it trained."""
    if len(site.sources) != 1:
        return False
    layer = site.sources[0].layer
    return (
        isinstance(layer, nn.Linear)
        and type(layer).forward is nn.Linear.forward
        and layer.weight is site.weight
        and {id(p) for p in active} == {id(p) for p in layer.parameters(recurse=False)}
        and all(p.device.type == "cpu" and not is_sharded(p.data) for p in active)
        and len({p.dtype for p in active}) == 1
        and layer.weight.dtype in (torch.float32, torch.float64)
        and layer.weight.numel() >= WORTH
    )


def _close(found: Tensor, wanted: Tensor) -> bool:
    allowed = 200 * torch.finfo(found.dtype).eps * float(found.norm())
    return float((found - wanted).norm()) <= allowed


def _plain(x: Any, layer: nn.Linear, output: Any) -> bool:
    """Whether a call is an ordinary product with a matrix of rows, recorded by autograd."""
    return (
        isinstance(x, Tensor)
        and isinstance(output, Tensor)
        and x.ndim == 2
        and x.dtype == output.dtype == layer.weight.dtype
        and layer.weight.requires_grad
        and torch.is_grad_enabled()
        and output.grad_fn is not None
        and output.grad_fn.name() in ("AddmmBackward0", "MmBackward0")
        and not (dist.is_available() and dist.is_initialized())  # gradients are of all processes
        and not _transformed()
    )


def _transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    stack = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    level = torch.autograd.forward_ad._current_level
    return level >= 0 or (stack is not None and stack() is not None)
