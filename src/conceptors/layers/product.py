"""Layers of any class that are one product with a matrix: GPT-2's Conv1D, routers of experts.

They are known by what they do: run once on tensors without numbers, their only use of the weight
must be a product with the input as it is, and the bias may only be added to that.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from conceptors.layers.base import Block, Call, RowsByBlock, Sample, recognise
from conceptors.layers.twin import answer, can_have_twin, own_parameters, sizes_apart, tried

_MATMULS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)


class Uses(TorchFunctionMode):
    """Records products of x with a weight, and whether weight or bias are used otherwise.

    Attributes:
        turned: of every product, whether the weight is `[d, out]`.
        strange: whether there was any other use.
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.turned: list[bool] = []
        self.strange = False
        self._x, self._has_bias = x, bias is not None
        self._known = [(weight, "weight"), (bias, "bias")]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        inputs = [*args, *kwargs.values()]
        roles = [self._role(x) for x in inputs]
        is_data = isinstance(result, (Tensor, tuple, list)) and not isinstance(result, torch.Size)
        if any(roles) and is_data:
            self._see(func, inputs, roles, kwargs, result)
        return result

    def _role(self, x: Any) -> str:
        known = (role for tensor, role in self._known if x is tensor)
        return "" if x is None else next(known, "")

    def _see(
        self, func: Any, inputs: list[Any], roles: list[str], kwargs: Any, result: Any
    ) -> None:
        name = getattr(getattr(func, "__self__", None), "__name__", "")  # of an attribute
        if roles == ["weight"] and (name in ("T", "mT") or func in (torch.t, Tensor.t)):
            self._known.append((result, "turned"))
        elif result is inputs[0]:  # a cast to the dtype that it has
            return
        elif func is functional.linear and set(kwargs) <= {"bias"}:
            self._product(inputs[0], roles[1], roles[2:], straight="weight")
        elif func is torch.addmm and not kwargs and roles[0] == "bias":
            self._product(inputs[1], roles[2], roles[:1], straight="turned")
        elif func in _MATMULS and not kwargs:
            self._product(inputs[0], roles[1], [], straight="turned")
        else:
            self.strange = True

    def _product(self, x: Any, weight: str, bias: list[str], straight: str) -> None:
        self.turned.append(weight != straight)
        self.strange |= (
            not _is(x, self._x)
            or weight not in ("weight", "turned")
            or ("bias" in bias) != self._has_bias
        )


def _is(entering: Tensor, x: Tensor) -> bool:
    """Whether these are the rows of x, maybe in fewer dimensions."""
    same = entering is x or entering._base is x
    return (
        same
        and entering.is_contiguous()
        and (entering.numel(), entering.shape[-1]) == (x.numel(), x.shape[-1])
    )


def _parts(layer: nn.Module) -> tuple[str, str | None]:
    """The names of a layer's matrix and of its bias."""
    named = {p.ndim: name for name, p in own_parameters(layer).items()}
    return named[2], named.get(1)


def is_turned(layer: nn.Module) -> bool | None:
    """Whether a layer is a product with a weight `[d, out]` (True), `[out, d]` (False), or none."""
    if not can_have_twin(layer):
        return None
    if sorted(p.ndim for p in own_parameters(layer).values()) not in ([2], [1, 2]):
        return None
    for turned in (False, True):
        if tried(partial(_probe, layer, turned)):
            return turned
    return None


def _probe(layer: nn.Module, turned: bool) -> bool:
    empty = {n: torch.empty(p.shape, device="meta") for n, p in own_parameters(layer).items()}
    weight, bias = _parts(layer)
    shape = empty[weight].shape
    x = torch.empty(*sizes_apart(*shape), shape[0 if turned else 1], device="meta")
    with Uses(x, empty[weight], empty.get(bias or "")) as uses:
        answer(layer, empty, x)
    return uses.turned == [turned] and not uses.strange


class ProductRule:
    """What straight and turned products have in common."""

    def rows(self, layer: nn.Module, call: Call, sample: Sample) -> RowsByBlock:
        given = [*call.args, *call.kwargs.values()]
        if len(given) != 1:
            raise ValueError(
                f"{type(layer).__name__} was tried out with one argument and is called with "
                f"{len(given)}; register a rule for it"
            )
        yield "", sample(given[0])


@recognise(lambda layer: is_turned(layer) is False)
class StraightProductRule(ProductRule):
    def blocks(self, layer: nn.Module) -> list[Block]:
        return [Block(*_parts(layer))]


@recognise(lambda layer: is_turned(layer) is True)
class TurnedProductRule(ProductRule):
    def blocks(self, layer: nn.Module) -> list[Block]:
        view, layout = lambda weight: weight.mT[None], "linear-transposed"
        return [Block(*_parts(layer), view=view, layout=layout, rows_first=False)]
