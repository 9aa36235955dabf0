"""What the shield must know of a layer type: its weight blocks, and which rows enter them.

Every supported layer is one or more grouped linear maps: a **block** is a weight `[g, out, d]`
(g independent groups; 1 for Linear) with an optional bias `[g, out]`, and what it multiplies
are **rows** `[g, n, d]`. A rule says how to see a layer's parameters as blocks, and how to get
the rows from one call of the layer. See `docs/shield.md` for a rule of your own in ten lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

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


class Moment(NamedTuple):
    """A sum of second moments `[g, d, d]` over `weight` rows, where rows would be wasteful."""

    total: Tensor
    weight: float


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


class Sample:
    """Chooses which rows of a call are used: all, or at most `cap`, reproducibly."""

    def __init__(self, cap: Callable[[int], int | None], seed: int) -> None:
        self._cap = cap
        self._generator = torch.Generator().manual_seed(seed)

    def indices(self, count: int, dim: int, device: torch.device) -> tuple[Tensor | None, float]:
        """(indices of the rows used, or None for all; how often each counts)."""
        cap = self._cap(dim)
        if cap is None or count <= cap:
            return None, 1.0
        chosen = torch.randint(count, (cap,), generator=self._generator)
        return chosen.to(device), count / cap

    def __call__(self, x: Tensor) -> Rows:
        """Rows of `[..., d]`."""
        flat = x[None].flatten(0, -2)  # also where d is 0
        chosen, weight = self.indices(len(flat), flat.shape[1], x.device)
        return Rows((flat if chosen is None else flat[chosen])[None], weight)


class Rule(Protocol):
    """What a layer type has to tell."""

    def blocks(self, layer: Any) -> list[Block]:
        """The blocks of a layer; parameters that no block names count as unsupported."""

    def rows(self, layer: Any, call: Call, sample: Sample) -> Iterator[tuple[str, Rows | Moment]]:
        """(block name, rows) of one call; a block may come several times."""


_RULES: dict[type[nn.Module], Rule] = {}


def register(*layer_types: type[nn.Module]) -> Callable[[type[Rule]], type[Rule]]:
    """Class decorator: this rule serves these layer types and their subclasses."""

    def decorate(rule: type[Rule]) -> type[Rule]:
        for layer_type in layer_types:
            if not (isinstance(layer_type, type) and issubclass(layer_type, nn.Module)):
                raise TypeError(f"register takes nn.Module classes, got {layer_type!r}")
            _RULES[layer_type] = rule()
        return rule

    return decorate


def find_rule(layer: nn.Module) -> Rule | None:
    """The rule of the nearest registered class a layer descends from."""
    for layer_type in type(layer).__mro__:
        if layer_type in _RULES:
            return _RULES[layer_type]
    return None


def registered() -> list[type[nn.Module]]:
    """All layer types that have a rule."""
    return list(_RULES)
