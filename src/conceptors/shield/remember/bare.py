"""What parameters beside layers meet, seen at the functions that take them.

Multiplied with activations, one number per channel, they are scales, and what they multiply are
their rows. Anything else makes them constants, which are claimed as a whole: to hold a parameter
fixed keeps old tasks whatever it is used for.
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


def reads_numbers(name: str, found: Any) -> bool:
    """Whether a function that gives no tensor uses the numbers of one all the same."""
    return name in _READS or (found is None and not name.startswith("."))


class Listener(Protocol):
    """Who is told what one parameter meets."""

    @property
    def listens(self) -> bool:
        """Whether it wants to know now."""

    def scale(self, x: Tensor) -> None:
        """It was multiplied with x `[..., d]`."""

    def hold(self) -> None:
        """It was used in some other way."""


class _Held(NamedTuple):
    """A tensor with the numbers of a parameter, times a factor, plus some number."""

    tensor: Tensor
    listener: Listener
    is_vector: bool
    factor: float = 1.0


class BareUses:
    """Follows parameters that stand alone through the functions of a pass."""

    def __init__(self) -> None:
        self._parameters: dict[int, _Held] = {}
        self._known: dict[int, _Held] = {}

    def add(self, parameter: Tensor, listener: Listener, is_vector: bool) -> None:
        """Tell this listener of the uses of a parameter."""
        self._parameters[id(parameter)] = _Held(parameter, listener, is_vector)
        self._known = dict(self._parameters)

    def listens(self) -> bool:
        """Whether anybody wants to know."""
        return any(held.listener.listens for held in self._parameters.values())

    def end(self) -> None:
        """A pass is over."""
        self._known = dict(self._parameters)

    def see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        """A function of this name was called."""
        given = list(_tensors([*args, *kwargs.values()]))
        held = [self._known[id(t)] for t in given if id(t) in self._known]
        if not held:
            return
        one, others = held[0], [t for t in given if id(t) not in self._known]
        if found is one.tensor and not name.endswith("_"):  # a cast to the dtype that it has
            return
        if len(held) > 1 or not one.is_vector or not isinstance(found, Tensor):
            for each in held:
                each.listener.hold()
            return
        factor = (
            None if others else _factor(name, args, kwargs, found.numel() == one.tensor.numel())
        )
        if factor is not None:
            self._known[id(found)] = one._replace(tensor=found, factor=factor * one.factor)
        elif name in _TIMES and len(others) == 1 and not kwargs and found.is_floating_point():
            one.listener.scale(_multiplied(others[0], one.tensor, found) * one.factor)
        else:
            one.listener.hold()


def _factor(name: str, args: tuple[Any, ...], kwargs: Any, is_whole: bool) -> float | None:
    """What a function multiplies a vector with, if it leaves it a vector; else None."""
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
    """Whether an index only adds dimensions, as [:, None] does."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is ... or part == slice(None) for part in parts)


def _multiplied(x: Tensor, vector: Tensor, found: Tensor) -> Tensor:
    """What each number of a vector was multiplied with, `[..., d]`."""
    wide = x.to(found.dtype).expand(found.shape)
    axes = [i for i, size in enumerate(vector.shape) if size > 1]
    return wide.movedim(axes[0] - vector.ndim, -1) if axes else wide[..., None]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (x for x in value if isinstance(x, Tensor))
