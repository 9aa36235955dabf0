"""Layers of any class that are one product with a matrix: GPT-2's Conv1D, routers of experts.

They are recognised by what they compute, on meta tensors: the weight may only be multiplied with
the unchanged input, and the bias may only be added to that product.
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


class ProductTracer(TorchFunctionMode):
    """Record products of x with a weight, and whether weight or bias are used otherwise.

    Attributes:
        transposed: for every product, whether the weight is `[d, out]`.
        has_other_use: whether weight or bias were used in any other way.
    """

    def __init__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.transposed: list[bool] = []
        self.has_other_use = False
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
            self._classify(func, inputs, roles, kwargs, result)
        return result

    def _role(self, x: Any) -> str:
        known = (role for tensor, role in self._known if x is tensor and x is not None)
        return next(known, "")

    def _classify(
        self, func: Any, inputs: list[Any], roles: list[str], kwargs: Any, result: Any
    ) -> None:
        name = getattr(getattr(func, "__self__", None), "__name__", "")  # of an attribute
        if roles == ["weight"] and (name in ("T", "mT") or func in (torch.t, Tensor.t)):
            self._known.append((result, "transposed"))
        elif result is inputs[0]:  # a cast to its own dtype
            return
        elif func is functional.linear and set(kwargs) <= {"bias"}:
            self._add_product(inputs[0], roles[1], roles[2:], straight="weight")
        elif func is torch.addmm and not kwargs and roles[0] == "bias":
            self._add_product(inputs[1], roles[2], roles[:1], straight="transposed")
        elif func in _MATMULS and not kwargs:
            self._add_product(inputs[0], roles[1], [], straight="transposed")
        else:
            self.has_other_use = True

    def _add_product(self, x: Any, weight: str, bias: list[str], straight: str) -> None:
        self.transposed.append(weight != straight)
        self.has_other_use |= (
            not _is_same_rows(x, self._x)
            or weight not in ("weight", "transposed")
            or ("bias" in bias) != self._has_bias
        )


def _is_same_rows(entering: Tensor, x: Tensor) -> bool:
    """Whether a tensor has the rows of x, possibly with fewer dimensions."""
    is_view = (entering is x or entering._base is x) and entering.is_contiguous()
    return is_view and (entering.numel(), entering.shape[-1]) == (x.numel(), x.shape[-1])


def _parts(layer: nn.Module) -> tuple[str, str | None]:
    """Return the names of a layer's matrix and of its bias."""
    by_ndim = {p.ndim: name for name, p in own_parameters(layer).items()}
    return by_ndim[2], by_ndim.get(1)


def multiplies(layer: nn.Module, transposed: bool) -> bool:
    """Whether a layer is a product with one weight `[out, d]`, or `[d, out]` if transposed."""
    ndims = sorted(p.ndim for p in own_parameters(layer).values())
    is_candidate = ndims in ([2], [1, 2]) and can_have_twin(layer)
    return is_candidate and tried(partial(_probe, layer, transposed))


def _probe(layer: nn.Module, transposed: bool) -> bool:
    empty = {n: torch.empty(p.shape, device="meta") for n, p in own_parameters(layer).items()}
    weight, bias = _parts(layer)
    shape = empty[weight].shape
    x = torch.empty(*sizes_apart(*shape), shape[0 if transposed else 1], device="meta")
    with ProductTracer(x, empty[weight], empty.get(bias or "")) as tracer:
        answer(layer, empty, x)
    return tracer.transposed == [transposed] and not tracer.has_other_use


@recognise(partial(multiplies, transposed=False))
class ProductRule:
    def blocks(self, layer: nn.Module) -> list[Block]:
        return [Block(*_parts(layer))]

    def rows(self, layer: nn.Module, call: Call, sample: Sample) -> RowsByBlock:
        inputs = [*call.args, *call.kwargs.values()]
        if len(inputs) != 1:
            raise ValueError(
                f"{type(layer).__name__} was probed with one argument and is called with "
                f"{len(inputs)}, so its inputs are unknown; register a rule for it"
            )
        yield "", sample(inputs[0])


@recognise(partial(multiplies, transposed=True))
class TransposedProductRule(ProductRule):
    def blocks(self, layer: nn.Module) -> list[Block]:
        view, layout = lambda weight: weight.mT[None], "linear-transposed"
        return [Block(*_parts(layer), view=view, layout=layout, rows_first=False)]
