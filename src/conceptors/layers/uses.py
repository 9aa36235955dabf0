"""Uses of weights that hooks do not see: without a call of their layer, or inside its own forward.

A rule covers the functions inside a call of its layer. A subclass that overrides forward may use
the weight in another way, so there the functions themselves stand for the calls (`inner`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from conceptors.layers.base import Call
from conceptors.layers.inner import inner_call, overrides_forward

_KINDS = ("tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint")
_FORMS = {f"new_{kind}" for kind in _KINDS} | {f"{kind}_like" for kind in _KINDS}
_READS = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__"}


class WeightUses(TorchFunctionMode):
    """Observe which torch functions receive weights.

    Args:
        weights: names of blocks, by the ids of the parameters that rules cover.
        bare: names of bare parameters, by their ids.

    Attributes:
        stray: how weights are used that no rule covers, by block.
        bare_used: names of the bare parameters that are used.
    """

    def __init__(self, weights: Mapping[int, str], bare: Mapping[int, str]) -> None:
        super().__init__()
        self.stray: dict[str, str] = {}
        self.bare_used: set[str] = set()
        self._weights, self._bare = weights, bare
        self._open: list[nn.Module] = []  # layers whose forward runs
        self._calls: dict[nn.Module, list[Call]] = {}  # inside those that override forward

    def restart(self) -> None:
        """Forget layers whose forward failed."""
        self._open, self._calls = [], {}

    def enter(self, layer: nn.Module) -> None:
        """Note that the forward of a layer begins."""
        self._open.append(layer)
        if overrides_forward(layer):
            self._calls[layer] = []

    def leave(self, layer: nn.Module) -> None:
        """Note that the forward of a layer ends."""
        while layer in self._open:  # and layers inside it that failed
            self._open.pop()
        self._calls.pop(layer, None)

    def calls(self, layer: nn.Module, call: Call) -> list[Call]:
        """Return the calls that a call of a layer stands for, as the layer's rule expects them."""
        return self._calls.pop(layer, [call])

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = _name(func)
        if name in _FORMS:  # uses only a tensor's dtype and device
            return result
        ids = [id(x) for x in _tensors([*args, *kwargs.values()])]
        is_shape = isinstance(result, torch.Size)
        has_numbers = isinstance(result, (Tensor, tuple, list)) and not is_shape
        if has_numbers and not self._is_covered(func, args, kwargs, result):
            layer = type(self._open[-1]).__name__ if self._open else None
            where = f"in {layer}.forward" if layer else "without a call of its layer"
            strays = [self._weights[i] for i in ids if i in self._weights]
            self.stray |= dict.fromkeys(strays, f"used by {name} {where}")
        is_written = result is None and not name.startswith(".")  # into another tensor
        if has_numbers or is_written or name in _READS:
            self.bare_used.update(self._bare[i] for i in ids if i in self._bare)
        return result

    def _is_covered(self, func: Any, args: Any, kwargs: Any, result: Any) -> bool:
        """Whether a rule covers a function: inside a layer, or as all that its forward calls."""
        layer = self._open[-1] if self._open else None
        if layer is None or layer not in self._calls:
            return layer is not None
        call = inner_call(layer, func, args, kwargs, result)
        if call is not None:
            self._calls[layer].append(call)
        return call is not None


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (x for x in value if isinstance(x, Tensor))


def _name(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    if name == "__get__":  # reads an attribute such as .T
        return f".{getattr(getattr(func, '__self__', None), '__name__', 'attribute')}"
    return name
