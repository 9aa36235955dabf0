"""The rule of a layer type: which parameters form weight blocks, and which rows enter them.

Every supported layer is one or more grouped linear maps. A **block** is a weight `[g, out, d]`
(g independent groups; 1 for Linear) with an optional bias `[g, out]`. It multiplies **rows**
`[g, n, d]`. A rule views a layer's parameters as blocks and reads the rows from one call of the
layer. `docs/extending.md` shows how to write a rule in ten lines.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Block:
    """One matrix of a layer: where its parameters are, and how to view them as `[g, out, d]`."""

    weight: str | None = "weight"  # path of the parameter below the layer; None for a bias alone
    bias: str | None = "bias"
    view: Callable[[Tensor], Tensor] = lambda weight: weight[None]  # a view [g, out, ...]
    bias_view: Callable[[Tensor], Tensor] = lambda bias: bias[None]  # a view [g, out]
    layout: str = "linear"  # blocks that share a weight are merged if their layout is the same
    rows_first: bool = True  # dimension 0 of the weight is `out` and g is 1: shards are local
    name: str = ""  # distinguishes the blocks of one layer


class Rows(NamedTuple):
    """Input rows `[g, n, d]`; each counts `weight` times (more than once if rows are sampled)."""

    values: Tensor
    weight: float = 1.0


class SecondMoment(NamedTuple):
    """The sum of second moments `[g, d, d]` over `weight` rows, where rows would waste memory."""

    total: Tensor
    weight: float


RowsByBlock = Iterator[tuple[str, Rows | SecondMoment]]


class Call(NamedTuple):
    """The arguments and the output of one call of a layer."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Return an argument that was passed by position or by name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)


class Draws:
    """Draw the random rows of one pass over the data, reproducibly for each seed.

    Within a batch, layers with the same number of rows share their random indices. Padding is
    never drawn.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator("cpu").manual_seed(seed)
        self._chosen: dict[object, Tensor] = {}
        self._real: tuple[torch.Size, Tensor] | None = None  # a mask's shape, and where it is 1

    def renew(self, mask: Tensor | None = None) -> None:
        """Draw new indices, for a new batch with a mask `[n, t]` that is 0 for padding."""
        self._chosen.clear()
        self._real = None if mask is None else (mask.shape, mask.flatten().nonzero().flatten())

    def unpadded(self, x: Tensor) -> Tensor:
        """Return x `[n, t, ..., d]` or `[n · t, ..., d]` without padding; others as they are."""
        if self._real is None:
            return x
        (shape, real), places = self._real, x.shape[:-1]
        if places[:2] != shape and places[:1] != (shape.numel(),):
            return x
        positions = x.flatten(0, 1) if places[:2] == shape else x
        return positions.index_select(0, real.to(x.device))

    def indices(self, count: int, size: int, device: torch.device) -> Tensor:
        """Draw `size` of `count` indices, ascending: one from each of `size` equal parts."""
        key = (count, size, device)
        if key not in self._chosen:
            spots = torch.rand(size, generator=self._generator, dtype=torch.float64, device="cpu")
            spots += torch.arange(size, device="cpu")
            chosen = (spots * (count / size)).long().clamp_(max=count - 1)
            self._chosen[key] = chosen.to(device)
        return self._chosen[key]


class Sample:
    """Select the rows of a call that are used: `cap(count, d)` of `count` rows, or all."""

    def __init__(self, cap: Callable[[int, int], int | None], draws: Draws) -> None:
        self._cap = cap
        self._draws = draws
        self.unpadded = draws.unpadded  # for tensors that are no rows, such as tokens

    def size(self, count: int, dim: int) -> int | None:
        """Return how many of `count` rows of `dim` numbers are used; None for all."""
        wanted = self._cap(count, dim)
        return None if wanted is None or wanted >= count else wanted

    def indices(self, count: int, dim: int, device: torch.device) -> Tensor:
        """Return the indices of the rows that are used, ascending."""
        size = self.size(count, dim)
        if size is None:
            return torch.arange(count, device=device)
        return self._draws.indices(count, size, device)

    def __call__(self, x: Tensor) -> Rows:
        """Return rows of x `[..., d]` as a matrix product uses them: rounded under autocast."""
        return self._take(x, multiplied_dtype(x))

    def unrounded(self, x: Tensor) -> Rows:
        """Return rows of x `[..., d]` in the dtype of x."""
        return self._take(x, x.dtype)

    def _take(self, x: Tensor, dtype: torch.dtype) -> Rows:
        x = self.unpadded(x)
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        count, size = len(rows), self.size(*rows.shape)
        if size is None:
            return Rows(rows[None].to(dtype))
        chosen = self._draws.indices(count, size, x.device)
        return Rows(rows.index_select(0, chosen)[None].to(dtype), count / size)


def multiplied_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which a product with x is computed: autocast rounds float32."""
    kind = x.device.type
    if x.dtype == torch.float32 and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return x.dtype


class Rule(Protocol):
    """The interface of a rule for a layer type."""

    def blocks(self, layer: Any) -> list[Block]:
        """Return the blocks of a layer. Its other parameters are bare (`bare`) or unsupported."""

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        """Yield (block name, rows) of one call; a block may occur several times."""


_RULES: dict[type[nn.Module], Rule] = {}
_BY_BEHAVIOUR: list[tuple[Callable[[nn.Module], bool], Rule]] = []
_AROUND: list[tuple[Callable[[nn.Module], bool], Callable[[Rule], Rule]]] = []
_RECOGNISED: weakref.WeakKeyDictionary[nn.Module, tuple[object, Rule | None]] = (
    weakref.WeakKeyDictionary()
)


def register(*layer_types: type[nn.Module]) -> Callable[[type[Rule]], type[Rule]]:
    """Register the decorated rule class for these layer types and their subclasses."""

    def decorate(rule: type[Rule]) -> type[Rule]:
        for layer_type in layer_types:
            if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
                raise TypeError(f"register needs nn.Module classes, got {layer_type!r}")
            _RULES[layer_type] = rule()
        return rule

    return decorate


def recognise(fits: Callable[[nn.Module], bool]) -> Callable[[type[Rule]], type[Rule]]:
    """Register the decorated rule class for layers of unknown classes that `fits` accepts."""

    def decorate(rule: type[Rule]) -> type[Rule]:
        _BY_BEHAVIOUR.append((fits, rule()))
        return rule

    return decorate


def around(fits: Callable[[nn.Module], bool]) -> Callable[[type[Any]], type[Any]]:
    """Wrap the rule of a layer's class in the decorated rule class where `fits` accepts it."""

    def decorate(rule: type[Any]) -> type[Any]:
        _AROUND.append((fits, rule))
        return rule

    return decorate


def owner_of(layer: nn.Module) -> type[nn.Module] | None:
    """Return the nearest registered class that a layer is an instance of."""
    return next((kind for kind in type(layer).__mro__ if kind in _RULES), None)


def find_rule(layer: nn.Module) -> Rule | None:
    """Return the rule of a layer, by its class or else by its behaviour; None without one."""
    if isinstance(layer, torch.jit.ScriptModule):  # its forward cannot be observed
        return None
    owner = owner_of(layer)
    if owner is None:
        return _by_behaviour(layer)
    return next((wrap(_RULES[owner]) for fits, wrap in _AROUND if fits(layer)), _RULES[owner])


def _by_behaviour(layer: nn.Module) -> Rule | None:
    """Return the rule that recognises a layer, which is probed again only if it has changed."""
    shapes = [(name, p.shape) for name, p in layer.named_parameters(recurse=False)]
    if not shapes:
        return None
    forward = id(vars(layer).get("forward"))
    state = (type(layer), forward, shapes, list(layer._modules), len(_BY_BEHAVIOUR))
    if layer not in _RECOGNISED or _RECOGNISED[layer][0] != state:
        rule = next((rule for fits, rule in _BY_BEHAVIOUR if fits(layer)), None)
        _RECOGNISED[layer] = (state, rule)
    return _RECOGNISED[layer][1]
