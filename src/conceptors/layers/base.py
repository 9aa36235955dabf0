"""What the shield must know of a layer type: its weight blocks, and which rows enter them.

Every supported layer is one or more grouped linear maps: a **block** is a weight `[g, out, d]`
(g independent groups; 1 for Linear) with an optional bias `[g, out]`, and what it multiplies
are **rows** `[g, n, d]`. A rule says how to see a layer's parameters as blocks, and how to get
the rows from one call of the layer. See `docs/extending.md` for a rule of your own in ten lines.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Block:
    """One matrix of a layer: where its parameters are, and how they are seen as `[g, out, d]`."""

    weight: str | None = "weight"  # path of the parameter below the layer, None for a bias alone
    bias: str | None = "bias"
    view: Callable[[Tensor], Tensor] = lambda weight: weight[None]  # a view [g, out, ...]
    bias_view: Callable[[Tensor], Tensor] = lambda bias: bias[None]  # a view [g, out]
    layout: str = "linear"  # blocks that share a weight are joined if their layout is the same
    rows_first: bool = True  # dimension 0 of the weight is `out` and g is 1: shards are local
    name: str = ""  # tells the blocks of one layer apart


class Rows(NamedTuple):
    """Input rows `[g, n, d]`, each counting `weight` times (more than once when sampled)."""

    values: Tensor
    weight: float = 1.0


class OwnedRows(Rows):
    """Rows that nobody else changes, so that they can be kept without a copy."""

    __slots__ = ()


class SecondMoment(NamedTuple):
    """A sum of second moments `[g, d, d]` over `weight` rows, where rows would be wasteful."""

    total: Tensor
    weight: float


RowsByBlock = Iterator[tuple[str, Rows | SecondMoment]]


class Call(NamedTuple):
    """One call of a layer, as a forward hook sees it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument passed by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)


class Draws:
    """The random choices of one pass over data: the same for the same seed.

    Within a batch, layers with equally many rows share a choice, and layers fed by the very same
    tensor (queries, keys and values) share the rows.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self._chosen: dict[object, Tensor] = {}
        self._last: tuple[weakref.ref[Tensor], object, Rows] | None = None

    def renew(self) -> None:
        """Choose anew from now on: a new batch begins."""
        self._chosen.clear()
        self._last = None

    def indices(self, count: int, size: int, device: torch.device) -> Tensor:
        """`size` of `count` rows, ascending: one at random out of each of `size` equal parts."""
        key = (count, size, device)
        if key not in self._chosen:
            if device not in self._generators:
                self._generators[device] = torch.Generator(device).manual_seed(self._seed)
            dtype = torch.float32 if device.type == "mps" else torch.float64
            spots = torch.rand(size, generator=self._generators[device], dtype=dtype, device=device)
            spots += torch.arange(size, device=device)
            self._chosen[key] = (spots * (count / size)).long().clamp_(max=count - 1)
        return self._chosen[key]

    def shared(self, x: Tensor, key: object, take: Callable[[], Rows]) -> Rows:
        """What `take` gives, or what it gave if the last rows were taken of x too, as it is now."""
        if x.is_inference():  # they do not count their changes
            return take()
        key = (key, x._version)
        if self._last is None or self._last[0]() is not x or self._last[1] != key:
            self._last = (weakref.ref(x), key, take())
        return self._last[2]


class Sample:
    """Gives the rows of a call that are used: all, or so many of `count` as `cap(count, d)`."""

    def __init__(self, cap: Callable[[int, int], int | None], draws: Draws) -> None:
        self._cap = cap
        self._draws = draws

    def size(self, count: int, dim: int) -> int | None:
        """How many of `count` rows of so many numbers are used; None for all."""
        wanted = self._cap(count, dim)
        return None if wanted is None or wanted >= count else wanted

    def indices(self, count: int, dim: int, device: torch.device) -> Tensor:
        """Which of `count` rows are used, ascending."""
        size = self.size(count, dim)
        if size is None:
            return torch.arange(count, device=device)
        return self._draws.indices(count, size, device)

    def __call__(self, x: Tensor) -> Rows:
        """Rows of `[..., d]`, as a product with a weight sees them: rounded under autocast."""
        size = self.size(math.prod(x.shape[:-1]), x.shape[-1])
        dtype = multiplied_dtype(x)
        return self._draws.shared(x, (size, dtype), lambda: self._take(x, size, dtype))

    def unrounded(self, x: Tensor) -> Rows:
        """Rows of `[..., d]` in the dtype they have."""
        return self._take(x, self.size(math.prod(x.shape[:-1]), x.shape[-1]), x.dtype)

    def _take(self, x: Tensor, size: int | None, dtype: torch.dtype) -> Rows:
        if size is None:
            rows = x[None].flatten(0, -2)[None]  # also where d is 0
            return Rows(rows) if dtype == rows.dtype else OwnedRows(rows.to(dtype))
        count = math.prod(x.shape[:-1])
        chosen = self._draws.indices(count, size, x.device)
        if x.is_contiguous():
            rows = x.view(count, -1).index_select(0, chosen)
        else:
            rows = x[torch.unravel_index(chosen, x.shape[:-1])]
        return OwnedRows(rows[None].to(dtype), count / size)


def multiplied_dtype(x: Tensor) -> torch.dtype:
    """In which dtype a product with x is computed here: autocast rounds float32."""
    kind = x.device.type
    if x.dtype == torch.float32 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


class Rule(Protocol):
    """What a layer type has to tell."""

    def blocks(self, layer: Any) -> list[Block]:
        """The blocks of a layer; other parameters of it stand alone (`bare`) or are unsupported."""

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        """(block name, rows) of one call; a block may come several times."""


Wrapping = TypeVar("Wrapping", bound=Callable[[Rule], Rule])

_RULES: dict[type[nn.Module], Rule] = {}
_BY_BEHAVIOUR: list[tuple[Callable[[nn.Module], bool], Rule]] = []
_AROUND: list[tuple[Callable[[nn.Module], bool], Callable[[Rule], Rule]]] = []
_RECOGNISED: weakref.WeakKeyDictionary[nn.Module, tuple[object, Rule | None]] = (
    weakref.WeakKeyDictionary()
)


def register(*layer_types: type[nn.Module]) -> Callable[[type[Rule]], type[Rule]]:
    """Class decorator: this rule serves these layer types and their subclasses."""

    def decorate(rule: type[Rule]) -> type[Rule]:
        for layer_type in layer_types:
            if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
                raise TypeError(f"register takes nn.Module classes, got {layer_type!r}")
            _RULES[layer_type] = rule()
        return rule

    return decorate


def recognise(fits: Callable[[nn.Module], bool]) -> Callable[[type[Rule]], type[Rule]]:
    """Class decorator: this rule serves layers of unknown classes that do what `fits` finds."""

    def decorate(rule: type[Rule]) -> type[Rule]:
        _BY_BEHAVIOUR.append((fits, rule()))
        return rule

    return decorate


def around(fits: Callable[[nn.Module], bool]) -> Callable[[Wrapping], Wrapping]:
    """Class decorator: where `fits` says so, this is put around the rule of a layer's class."""

    def decorate(rule: Wrapping) -> Wrapping:
        _AROUND.append((fits, rule))
        return rule

    return decorate


def owner_of(layer: nn.Module) -> type[nn.Module] | None:
    """The nearest registered class a layer descends from."""
    return next((kind for kind in type(layer).__mro__ if kind in _RULES), None)


def find_rule(layer: nn.Module) -> Rule | None:
    """The rule of the nearest registered class a layer descends from, else of what it does."""
    if isinstance(layer, torch.jit.ScriptModule):  # its forward cannot be observed
        return None
    owner = owner_of(layer)
    if owner is None:
        return _by_behaviour(layer)
    wrapping = next((wrap for fits, wrap in _AROUND if fits(layer)), None)
    return _RULES[owner] if wrapping is None else wrapping(_RULES[owner])


def _by_behaviour(layer: nn.Module) -> Rule | None:
    """The rule that recognises a layer; it is tried out anew only where it may have changed."""
    shapes = [(name, p.shape) for name, p in layer.named_parameters(recurse=False)]
    if not shapes:
        return None
    forward = id(vars(layer).get("forward"))
    state = (type(layer), forward, shapes, list(layer._modules), len(_BY_BEHAVIOUR))
    if layer not in _RECOGNISED or _RECOGNISED[layer][0] != state:
        rule = next((rule for fits, rule in _BY_BEHAVIOUR if fits(layer)), None)
        _RECOGNISED[layer] = (state, rule)
    return _RECOGNISED[layer][1]
