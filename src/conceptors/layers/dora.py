"""DoRA of peft: (g / |W + s B A|) (W + s B A) x, by what its layers hold, without importing it.

A and B are `Linear` layers with rules of their own, and g follows the length (`magnitude`). To know
that length, DoRA calls A and B with the identity: such calls read weights, and are no data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from torch import Tensor, nn


class Adapter(NamedTuple):
    """One adapter of a layer: g, A, B, s, and the layer that is adapted."""

    magnitude: Any
    down: Any
    up: Any
    scaling: float
    base: nn.Module


def adapters(layer: Any) -> Iterator[Adapter]:
    """Those of a layer that have a magnitude and are linear."""
    held = getattr(layer, "lora_magnitude_vector", None)
    for name, magnitude in held.items() if isinstance(held, nn.ModuleDict) else ():
        down, up = (getattr(layer, part, {}) for part in ("lora_A", "lora_B"))
        if name in down and name in up and isinstance(down[name], nn.Linear):
            scaling, base = layer.scaling[name], layer.get_base_layer()
            yield Adapter(magnitude, down[name], up[name], scaling, base)


def length_of_adapted(adapter: Adapter) -> Tensor:
    """|W + s B A|, row by row, of bases in any precision."""
    peft = import_module("peft.utils.integrations")
    delta = adapter.up.weight @ adapter.down.weight
    weight = peft.dequantize_module_weight(adapter.base).to(delta)
    found: Tensor = adapter.magnitude.get_weight_norm(weight, delta, adapter.scaling)
    return found


class WeightReads:
    """Which calls of A and B only read their weights."""

    def __init__(self, model: nn.Module) -> None:
        self._adapters = [one for layer in model.modules() for one in adapters(layer)]
        self._inside: dict[nn.Module, Any] = {}  # A -> what DoRA was called with
        self._read: list[Any] = []  # what A gave when it was only read

    @contextmanager
    def watching(self) -> Iterator[None]:
        """For a pass."""
        with ExitStack() as hooks:
            for one in self._adapters:
                for handle in (
                    one.magnitude.register_forward_pre_hook(self._enter(one)),
                    one.magnitude.register_forward_hook(self._leave(one)),
                    one.down.register_forward_hook(self._after_down),
                ):
                    hooks.callback(handle.remove)
            yield
        self._inside, self._read = {}, []

    def __call__(self, layer: nn.Module, args: tuple[Any, ...]) -> bool:
        """Whether a call of a layer is one."""
        x = args[0] if args else None
        inside = layer in self._inside and x is not self._inside[layer]
        return inside or any(x is read for read in self._read)

    def _enter(self, one: Adapter) -> Any:
        def enter(_layer: nn.Module, args: tuple[Any, ...]) -> None:
            self._inside[one.down] = args[0]

        return enter

    def _leave(self, one: Adapter) -> Any:
        def leave(_layer: nn.Module, _args: Any, _output: Any) -> None:
            self._inside.pop(one.down, None)
            self._read = []

        return leave

    def _after_down(self, layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self(layer, args):
            self._read.append(output)
