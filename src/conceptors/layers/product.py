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
_TURNS = ("T", "mT")  # attributes that give a transposed view


class Uses(TorchFunctionMode):
    """Which products a weight and a bias take part in, and whether they are used otherwise."""

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.turned: list[bool] = []  # of every product with x: is the weight [d, out]?
        self.strange = False
        self._x, self._weight, self._bias = x, weight, bias
        self._transposed: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        given = [*args, *kwargs.values()]
        if any(isinstance(t, Tensor) and self._role(t) for t in given) and _takes_numbers(found):
            self._see(func, given, kwargs, found)
        return found

    def _role(self, tensor: Any) -> str:
        if tensor is self._weight:
            return "weight"
        if any(tensor is t for t in self._transposed):
            return "turned"
        return "bias" if self._bias is not None and tensor is self._bias else ""

    def _see(self, func: Any, given: list[Any], kwargs: dict[str, Any], found: Any) -> None:
        name = getattr(getattr(func, "__self__", None), "__name__", getattr(func, "__name__", ""))
        roles = [self._role(t) for t in given]
        if (name in _TURNS or func in (torch.t, Tensor.t)) and roles == ["weight"]:
            self._transposed.append(found)
        elif found is given[0]:  # a cast to the dtype that it has
            return
        elif func is functional.linear and set(kwargs) <= {"bias"}:
            self._product(given[0], roles[1], roles[2:], straight="weight")
        elif func is torch.addmm and not kwargs and roles[0] == "bias":
            self._product(given[1], roles[2], roles[:1], straight="turned")
        elif func in _MATMULS and not kwargs:
            self._product(given[0], roles[1], [], straight="turned")
        else:
            self.strange = True

    def _product(self, x: Any, weight: str, bias: list[str], straight: str) -> None:
        with_bias = ["bias"] if self._bias is not None else []
        self.turned.append(weight != straight)
        self.strange |= (
            not _is(x, self._x)
            or weight not in ("weight", "turned")
            or [role for role in bias if role] != with_bias
        )


def _takes_numbers(found: Any) -> bool:
    """Whether a function may have used a tensor's numbers: its shape or dtype are none."""
    return isinstance(found, (Tensor, tuple, list)) and not isinstance(found, torch.Size)


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
