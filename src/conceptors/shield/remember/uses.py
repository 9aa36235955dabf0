"""Observe where weights are used in a pass, at the torch functions that receive them.

Hooks observe only calls of layers. A weight may also be used without a call of its layer, or in
another way by a subclass that overrides forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from conceptors.layers import Call
from conceptors.layers.bare import is_bare
from conceptors.layers.dora import WeightReads
from conceptors.layers.inner import inner_call, overrides_forward
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.remember.bare import BareUses, reads_numbers

_KINDS = ("tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint")
_FORMS = {f"new_{kind}" for kind in _KINDS} | {f"{kind}_like" for kind in _KINDS}


class StrayUse(NamedTuple):
    """A function that used a weight where no rule covers it."""

    site: str
    function: str
    layer: str | None  # the class whose forward used it; None outside of layers

    def __str__(self) -> str:
        where = "without a call of its layer" if self.layer is None else f"in {self.layer}.forward"
        return f"{self.site} (used by {self.function} {where})"


class WeightUses(TorchFunctionMode):
    """Collect the inputs of layers that override forward, and stray uses of weights."""

    def __init__(self, sites: Mapping[str, WeightBlock], reads: WeightReads) -> None:
        super().__init__()
        self.is_read = reads
        self.stray: dict[StrayUse, None] = {}
        self.bare = BareUses()
        layered = {name: site for name, site in sites.items() if not is_bare(site.block)}
        self._names = {id(p): name for name, site in layered.items() for p in site.active()}
        self._layers = {source.layer for site in layered.values() for source in site.sources}
        self._overriding = {layer for layer in self._layers if overrides_forward(layer)}
        self._open: list[nn.Module] = []
        self._calls: dict[nn.Module, list[Call]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Observe the pass of one batch."""
        with ExitStack() as hooks:
            for layer in self._layers:
                for handle in (
                    layer.register_forward_pre_hook(self._enter, prepend=True),
                    layer.register_forward_hook(self._leave),
                ):
                    hooks.callback(handle.remove)
            with self.is_read.watching(), self:
                yield
        self._open, self._calls = [], {}
        self.bare.end()

    def calls(self, layer: nn.Module, call: Call) -> list[Call]:
        """Return the calls of the class with the rule that a call of a layer consists of."""
        return self._calls.pop(layer, [call])

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
        if name not in _FORMS and (_has_numbers(result) or reads_numbers(name, result)):
            self.bare.observe(name, args, kwargs, result)
        if _has_numbers(result):
            layer = self._open[-1] if self._open else None
            if layer is None or layer in self._calls:
                self._observe(layer, func, args, kwargs, result)
        return result

    def _observe(
        self, layer: nn.Module | None, func: Any, args: Any, kwargs: Any, result: Any
    ) -> None:
        """Record a function that was called outside of layers, or by an overridden forward."""
        call = None if layer is None else inner_call(layer, func, args, kwargs, result)
        if layer is not None and call is not None:
            self._calls[layer].append(call)
            return
        if _name(func) in _FORMS:  # uses only a weight's dtype and device
            return
        for tensor in _parameters([*args, *kwargs.values()]):
            site = self._names.get(id(tensor))
            if site is not None:
                kind = None if layer is None else type(layer).__name__
                self.stray[StrayUse(site, _name(func), kind)] = None


def refuse(uses: Iterable[StrayUse]) -> None:
    """Raise ValueError if there are stray uses."""
    listed = "\n".join(f"  {use}" for use in uses)
    if listed:
        raise ValueError(
            f"these weights are used where the shield cannot observe their inputs:\n{listed}\n"
            f"Nothing was remembered. Call the layer, layer(x), register a rule for its class, "
            f"freeze or exclude it by name, or choose unsupported='freeze' (fixed from now on) or "
            f"'ignore' (may forget)"
        )


def _has_numbers(result: Any) -> bool:
    """Whether a function returned tensors, not only a shape."""
    return isinstance(result, (Tensor, tuple, list)) and not isinstance(result, torch.Size)


def _parameters(values: Iterable[Any]) -> Iterator[nn.Parameter]:
    for value in values:
        if isinstance(value, nn.Parameter):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (x for x in value if isinstance(x, nn.Parameter))


def _name(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    if name == "__get__":  # reads an attribute such as .T
        return f".{getattr(getattr(func, '__self__', None), '__name__', 'attribute')}"
    return name
