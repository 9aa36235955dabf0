"""Observe where weights are used in a pass, at the torch functions that receive them.

Hooks observe only calls of layers. A weight may also be used without a call of its layer, or in
another way by a subclass that overrides forward. Bare parameters belong to no layer's matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from conceptors.layers import Call
from conceptors.layers.bare import is_bare
from conceptors.layers.dora import WeightReads
from conceptors.layers.inner import inner_call, overrides_forward
from conceptors.shield.blocks import WeightBlock, is_sharded

_KINDS = ("tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint")
_FORMS = {f"new_{kind}" for kind in _KINDS} | {f"{kind}_like" for kind in _KINDS}
_READS = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__"}


class WeightUses(TorchFunctionMode):
    """Collect the inputs of layers that override forward, used bare parameters, and stray uses.

    Attributes:
        used: the names of the bare parameters that were used.
        stray: how weights are used that no rule covers, by block.
    """

    def __init__(self, sites: Mapping[str, WeightBlock], reads: WeightReads) -> None:
        super().__init__()
        self.is_read = reads
        self.used: set[str] = set()
        self.stray: dict[str, str] = {}
        self._bare = {name: site for name, site in sites.items() if is_bare(site.block)}
        layered = {name: site for name, site in sites.items() if name not in self._bare}
        self._bare_names = {id(site.parameters[0]): name for name, site in self._bare.items()}
        self._names = {id(p): name for name, site in layered.items() for p in site.active()}
        self._layers = {source.layer for site in layered.values() for source in site.sources}
        self._overriding = {layer for layer in self._layers if overrides_forward(layer)}
        self._open: list[nn.Module] = []
        self._calls: dict[nn.Module, list[Call]] = {}

    def observe(self) -> Iterator[Any]:
        """Install the hooks of all layers, and of the modules with bare parameters."""
        for layer in self._layers:
            yield layer.register_forward_pre_hook(self._enter, prepend=True)
            yield layer.register_forward_hook(self._leave)
        for name, site in self._bare.items():
            if is_sharded(site.parameters[0].data):  # FSDP hides uses
                self.used.add(name)
            yield site.sources[0].layer.register_forward_hook(partial(self._note_use, name))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe the pass of one batch."""
        with self.is_read.watching(), self:
            yield
        self._open, self._calls = [], {}

    def calls(self, layer: nn.Module, call: Call) -> list[Call]:
        """Return the calls of the class with the rule that a call of a layer consists of."""
        return self._calls.pop(layer, [call])

    def _note_use(self, name: str, *_: Any) -> None:
        self.used.add(name)  # perhaps in a kernel that cannot be observed

    def _enter(self, layer: nn.Module, _args: Any) -> None:
        self._open.append(layer)
        if layer in self._overriding:
            self._calls[layer] = []

    def _leave(self, layer: nn.Module, _args: Any, _output: Any) -> None:
        while layer in self._open:  # and layers inside it that failed
            self._open.pop()
        self._calls.pop(layer, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = _name(func)
        if name in _FORMS:  # uses only a tensor's dtype and device
            return result
        is_shape = isinstance(result, torch.Size)
        has_numbers = isinstance(result, (Tensor, tuple, list)) and not is_shape
        if has_numbers:
            self._observe(func, args, kwargs, result)
        is_written = result is None and not name.startswith(".")  # into another tensor
        if self._bare and (has_numbers or is_written or name in _READS):
            ids = map(id, _tensors([*args, *kwargs.values()]))
            self.used.update(self._bare_names[i] for i in ids if i in self._bare_names)
        return result

    def _observe(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record a function that was called outside of layers, or by an overridden forward."""
        layer = self._open[-1] if self._open else None
        if layer is not None and layer not in self._calls:
            return
        if layer is not None:
            call = inner_call(layer, func, args, kwargs, result)
            if call is not None:
                self._calls[layer].append(call)
                return
        for tensor in _tensors([*args, *kwargs.values()]):
            site = self._names.get(id(tensor))
            if site is not None:
                where = f"in {type(layer).__name__}.forward"
                where = "without a call of its layer" if layer is None else where
                self.stray[site] = f"used by {_name(func)} {where}"


def refuse(uses: Mapping[str, str]) -> None:
    """Raise ValueError if there are stray uses, given by block."""
    listed = "\n".join(f"  {site} ({use})" for site, use in uses.items())
    if listed:
        raise ValueError(
            f"these weights are used where the shield cannot observe their inputs:\n{listed}\n"
            f"Nothing was remembered. Call the layer, layer(x), register a rule for its class, "
            f"freeze or exclude it by name, or choose unsupported='freeze' (fixed from now on) or "
            f"'ignore' (may forget)"
        )


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
