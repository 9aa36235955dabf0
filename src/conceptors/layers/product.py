"""Layers of any class that are one product with a matrix: GPT-2's Conv1D, routers of experts.

They are recognised by what they compute, on meta tensors: the weight may only be multiplied with
the unchanged input, and the bias may only be added to that product.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from conceptors.layers.base import Block, Call, RowsByBlock, Sample, recognise
from conceptors.layers.twin import answer, can_have_twin, own_parameters, sizes_apart, tried

_MATMULS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
_PLACES: dict[Any, tuple[int, int, int]] = {  # of rows, weight and bias among the arguments
    functional.linear: (0, 1, 2),
    torch.addmm: (1, 2, 0),
    **dict.fromkeys(_MATMULS, (0, 1, 2)),
}


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
        self._x, self._weight, self._bias = x, weight, bias
        self._turned: list[Tensor] = []  # the weight, transposed

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        inputs = [*args, *kwargs.values()]
        is_data = isinstance(result, (Tensor, tuple, list)) and not isinstance(result, torch.Size)
        is_cast = result is inputs[0]  # to its own dtype
        if is_data and not is_cast and any(map(self._is_parameter, inputs)):
            self._classify(func, inputs, kwargs, result)
        return result

    def _is_parameter(self, x: Any) -> bool:
        parameters = (self._weight, self._bias, *self._turned)
        return x is not None and any(x is parameter for parameter in parameters)

    def _classify(self, func: Any, inputs: list[Any], kwargs: Any, result: Any) -> None:
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        turns = attribute in ("T", "mT") or func in (torch.t, Tensor.t)
        if turns and inputs[0] is self._weight:
            self._turned.append(result)
        elif func in _PLACES and set(kwargs) <= {"bias"}:
            x, weight, bias = ([*inputs, None][i] for i in _PLACES[func])
            is_turned = any(weight is tensor for tensor in self._turned)
            self.transposed.append(is_turned == (func is functional.linear))
            self.has_other_use |= not (
                _is_same_rows(x, self._x)
                and (is_turned or weight is self._weight)
                and bias is self._bias
            )
        else:
            self.has_other_use = True


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
