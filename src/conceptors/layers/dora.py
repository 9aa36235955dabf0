"""DoRA of peft, (g / |W + s B A|) (W + s B A) x, recognised by attributes, without importing peft.

A and B are `Linear` layers with their own rules, and g follows the length (`magnitude`). To compute
that length, DoRA calls A and B with the identity. Such calls read weights and pass no data.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor, nn


class Adapter(NamedTuple):
    """One adapter of a layer: g, A, B, s, and the adapted layer."""

    magnitude: Any
    down: Any
    up: Any
    scaling: float
    base: nn.Module


def adapters(layer: Any) -> Iterator[Adapter]:
    """Yield the linear adapters of a layer that have a magnitude."""
    vectors = getattr(layer, "lora_magnitude_vector", None)
    for name, magnitude in vectors.items() if isinstance(vectors, nn.ModuleDict) else ():
        down, up = (getattr(layer, part, {}) for part in ("lora_A", "lora_B"))
        if name in down and name in up and isinstance(down[name], nn.Linear):
            scaling, base = layer.scaling[name], layer.get_base_layer()
            yield Adapter(magnitude, down[name], up[name], scaling, base)


def length_of_adapted(adapter: Adapter) -> Tensor:
    """Compute |W + s B A| row by row, for base layers in any precision."""
    peft = import_module("peft.utils.integrations")
    delta = adapter.up.weight @ adapter.down.weight
    weight = peft.dequantize_module_weight(adapter.base).to(delta)
    length: Tensor = adapter.magnitude.get_weight_norm(weight, delta, adapter.scaling)
    return length


class WeightReads:
    """Detect the calls of A and B that only read their weights."""

    def __init__(self, model: nn.Module) -> None:
        self._adapters = [adapter for layer in model.modules() for adapter in adapters(layer)]
        self._inside: dict[nn.Module, Any] = {}  # A -> the input of the DoRA call
        self._read: list[Any] = []  # outputs of A when it was only read

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe the calls of one pass."""
        with ExitStack() as hooks:
            for magnitude, down, *_ in self._adapters:
                enter, leave = partial(self._enter, down), partial(self._leave, down)
                hooks.callback(magnitude.register_forward_pre_hook(enter).remove)
                hooks.callback(magnitude.register_forward_hook(leave).remove)
                hooks.callback(down.register_forward_hook(self._after_down).remove)
            yield
        self._inside, self._read = {}, []

    def __call__(self, layer: nn.Module, args: tuple[Any, ...]) -> bool:
        """Whether a call of a layer only reads its weight."""
        x = args[0] if args else None
        inside = layer in self._inside and x is not self._inside[layer]
        return inside or any(x is output for output in self._read)

    def _enter(self, down: nn.Module, _layer: nn.Module, args: tuple[Any, ...]) -> None:
        self._inside[down] = args[0]

    def _leave(self, down: nn.Module, *_: Any) -> None:
        self._inside.pop(down, None)
        self._read = []

    def _after_down(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self(layer, args):
            self._read.append(output)
