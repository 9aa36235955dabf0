"""Observe how bare parameters are used, at the functions that receive them.

A vector that multiplies activations, one number per channel, is a scale, and what it multiplies are
its rows. Every other use makes a parameter a constant, which is claimed as a whole: a fixed
parameter preserves old tasks whatever it is used for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from torch import Tensor

_TIMES = {"mul", "__mul__", "__rmul__", "multiply"}
_PLUS = {"add", "__add__", "__radd__"}
_SAME = {"view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "detach"}
_READS = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__"}
_CASTS = {"to", "type_as", "float", "double", "half", "bfloat16"}


def reads_numbers(name: str, result: Any) -> bool:
    """Whether a function that returns no tensor reads the numbers of one."""
    return name in _READS or (result is None and not name.startswith("."))


class Listener(Protocol):
    """Receives the uses of one parameter."""

    @property
    def listens(self) -> bool:
        """Whether it records the current batch."""

    def scale(self, x: Tensor) -> None:
        """Record a product with x `[..., d]`."""

    def mark_constant(self) -> None:
        """Record any other use."""


class _Alias(NamedTuple):
    """A tensor with the numbers of a parameter, times a factor, plus a number."""

    tensor: Tensor
    listener: Listener
    is_vector: bool
    factor: float = 1.0


class BareUses:
    """Follow bare parameters through the functions of a pass."""

    def __init__(self) -> None:
        self._parameters: dict[int, _Alias] = {}
        self._aliases: dict[int, _Alias] = {}

    def add(self, parameter: Tensor, listener: Listener, is_vector: bool) -> None:
        """Report the uses of a parameter to this listener."""
        self._parameters[id(parameter)] = _Alias(parameter, listener, is_vector)
        self._aliases = dict(self._parameters)

    def end(self) -> None:
        """End a pass."""
        self._aliases = dict(self._parameters)

    def observe(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Record a call of the function of this name."""
        inputs = list(_tensors([*args, *kwargs.values()]))
        aliases = [self._aliases[id(t)] for t in inputs if id(t) in self._aliases]
        if not aliases:
            return
        alias, others = aliases[0], [t for t in inputs if id(t) not in self._aliases]
        if result is alias.tensor and not name.endswith("_"):  # a cast to its own dtype
            return
        if len(aliases) > 1 or not alias.is_vector or not isinstance(result, Tensor):
            for used in aliases:
                used.listener.mark_constant()
            return
        is_whole = result.numel() == alias.tensor.numel()
        factor = None if others else _factor(name, args, kwargs, is_whole)
        if factor is not None:
            self._aliases[id(result)] = alias._replace(tensor=result, factor=factor * alias.factor)
        elif name in _TIMES and len(others) == 1 and not kwargs and result.is_floating_point():
            alias.listener.scale(_multiplied(others[0], alias.tensor, result) * alias.factor)
        else:
            alias.listener.mark_constant()


def _factor(name: str, args: tuple[Any, ...], kwargs: Any, is_whole: bool) -> float | None:
    """Return the factor by which a function multiplies a vector; None if it does anything else."""
    numbers = [value for value in args if isinstance(value, (int, float))]
    if not is_whole:
        return None
    if name in _SAME | _CASTS or (name == "__getitem__" and _is_trivial(args[1])):
        return 1.0
    if kwargs or len(numbers) != 1 or len(args) != 2:
        return None
    if name in _PLUS:
        return 1.0
    return float(numbers[0]) if name in _TIMES else None


def _is_trivial(index: Any) -> bool:
    """Whether an index only adds dimensions, such as [:, None]."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is ... or part == slice(None) for part in parts)


def _multiplied(x: Tensor, vector: Tensor, product: Tensor) -> Tensor:
    """Return what each number of a vector was multiplied with, `[..., d]`."""
    expanded = x.to(product.dtype).expand(product.shape)
    axes = [i for i, size in enumerate(vector.shape) if size > 1]
    return expanded.movedim(axes[0] - vector.ndim, -1) if axes else expanded[..., None]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (x for x in value if isinstance(x, Tensor))
