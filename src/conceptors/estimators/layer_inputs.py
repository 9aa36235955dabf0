"""What enters the layers of a network, side by side: features for a readout of all of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from conceptors._internal import checks
from conceptors._internal.batches import undisturbed
from conceptors._internal.suggest import nearest
from conceptors.estimators.lift import Lift, RandomFeatures, Scaling
from conceptors.estimators.patches import PatchFeatures
from conceptors.estimators.side_by_side import SideBySide

_MAPS = (_ConvNd, _BatchNorm, nn.GroupNorm)  # get channels before places
_CELLS = 2  # in each direction, that answers to patches are averaged over


class LayerInputs(nn.Module):
    """The inputs of a network and of its layers as features `[n, out_features]`.

    A readout of the last layer alone sees what was made for the classes that the network knows.
    What enters the layers before it, and the input itself, is more general, and moves less.

    Maps `[n, c, h, w]` are averaged over a grid of cells, sequences `[n, tokens, d]` over their
    tokens. The network runs in evaluation mode and without gradients, and is left as it is. What
    two layers get alike, with the example, is read once.

    Args:
        model: the network.
        example: some inputs for it: a tensor, or a mapping of arguments by name.
        layers: name patterns (shell style) of the layers whose inputs are read; by default those
            of all linear layers and convolutions.
        inputs: whether to read the input itself, too, if it is one tensor of floats.
        grid: cells in each direction.

    Attributes:
        out_features: how many numbers a sample has.
        widths: the same by layer, in their order; `"input"` is the input itself, or `"(input)"`
            where a layer has that name.

    Raises:
        ValueError: a pattern that fits no layer, or layers that get other than a row per sample.

    >>> from conceptors import Readout
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
    >>> x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
    >>> reader = LayerInputs(model, x[:2])
    >>> reader.widths
    {'input': 64, '3': 144}
    >>> readout = Readout(reader.out_features, reader.lift(500))
    >>> readout.learn(reader(x), y).predict(reader(x)).shape
    torch.Size([60])
    """

    def __init__(
        self,
        model: nn.Module,
        example: Tensor | Mapping[str, Any],
        *,
        layers: str | Iterable[str] | None = None,
        inputs: bool = True,
        grid: int = 4,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise TypeError(f"LayerInputs takes an nn.Module, got {type(model).__name__}")
        if not isinstance(example, (Tensor, Mapping)):
            raise TypeError(
                f"the example must be a tensor, or a mapping of arguments by name, got "
                f"{type(example).__name__}"
            )
        self.model = model
        self._grid = checks.whole(grid, "grid", 1)
        self._shape: tuple[int, ...] | None = None  # of the input, if that is read
        if inputs and isinstance(example, Tensor) and _is_plain(example):
            self._shape = tuple(example.shape[1:])
        given, found = self._read(_chosen(model, layers), (example,), {}, once=True)
        self._names = list(found)
        self._own = "input" if "input" not in found else "(input)"
        rows = {self._own: given} if given is not None else {}
        self.widths = {name: part.shape[1] for name, part in {**rows, **found}.items()}
        if not self.widths:
            raise ValueError("none of these layers was called with a tensor of floats")
        self.out_features = sum(self.widths.values())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Features `[n, out_features]` of what the network would be called with."""
        given, found = self._read(self._names, args, kwargs)
        rows = {**({self._own: given} if given is not None else {}), **found}
        for name, width in self.widths.items():
            if name not in rows:
                raise ValueError(f"layer {name!r} was not called, as it was with the example")
            if rows[name].shape[1] != width:
                raise ValueError(
                    f"layer {name!r} has {rows[name].shape[1]} features for this input, and "
                    f"{width} for the example; inputs of other sizes need a reader of their own"
                )
        return torch.cat([rows[name] for name in self.widths], 1)

    def lift(self, count: int = 2000, *, image: tuple[int, ...] | None = None) -> SideBySide:
        """Lifts for a readout of these features: of the input, and of all that layers get.

        Args:
            count: random features of each, and of natural images a quarter as many patches in four
                cells; where layers give more than that, they are read as they are.
            image: (h, w) or (c, h, w) of the input, if it is an image; known where inputs are
                `[n, c, h, w]`.
        """
        count = checks.whole(count, "count", 1)
        rest = self.out_features - (self.widths[self._own] if self._shape is not None else 0)
        parts: list[Lift] = []
        if rest:
            parts.append(Scaling(rest) if rest >= count else RandomFeatures(rest, count))
        if self._shape is not None:
            if image is None and len(self._shape) == 3:
                image = self._shape
            parts.insert(0, _of_input(math.prod(self._shape), image, count))
        elif image is not None:
            raise ValueError("image is for readers of the input itself, which this one is not")
        return SideBySide(*parts)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {width}" for name, width in self.widths.items())

    # --- reading --------------------------------------------------------------------------

    def _read(
        self, names: list[str], args: tuple[Any, ...], kwargs: dict[str, Any], once: bool = False
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Rows `[n, k]` of the input, if it is read, and of each layer that is called, in order.

        `once`: without layers that get what another one got before them, or the input.
        """
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self._read(names, (), {**args[0], **kwargs}, once)
        seen: dict[str, list[Tensor]] = {}
        held: dict[object, tuple[str | None, Tensor]] = {}  # so that no address is used again
        given = None
        if self._shape is not None:
            x = self._first(args, kwargs)
            given, held[_place(x)] = x.flatten(1).clone(), (None, x)

        def look(name: str, layer: nn.Module, got: tuple[Any, ...]) -> None:
            x = got[0] if got else None
            if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
                return
            if not once or held.setdefault(_place(x), (name, x))[0] == name:
                seen.setdefault(name, []).append(self._pooled(layer, x))

        with undisturbed(self.model), _watched(self.model, names, look):
            self.model(*args, **kwargs)
        found = {name: _mean(name, rows) for name, rows in seen.items()}
        counts = {name: len(rows) for name, rows in found.items()}
        counts |= {"the input": len(given)} if given is not None else {}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"layers were called with different numbers of rows: {counts}; name those of one "
                f"row per sample, layers=[...]"
            )
        return given, found

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The input: the first argument, also where it is given by its name."""
        name = next(iter(inspect.signature(self.model.forward).parameters), "")
        x = args[0] if args else kwargs.get(name)
        if not isinstance(x, Tensor) or not _is_plain(x):
            raise TypeError(f"the input must be a tensor of floats, as the example; got {_told(x)}")
        return x

    def _pooled(self, layer: nn.Module, x: Tensor) -> Tensor:
        """What enters a layer as one row for each sample, in memory of its own."""
        by_token = isinstance(layer, (nn.Linear, nn.LayerNorm))
        if isinstance(layer, _MAPS) or (x.ndim in (4, 5) and not by_token):
            sizes = [min(self._grid, size) for size in x.shape[2:]]
            pool: Any = getattr(functional, f"adaptive_avg_pool{len(sizes)}d", None)
            if pool is None or not sizes:
                return x.flatten(1).clone()
            found: Tensor = pool(x, sizes)
            return found.flatten(1).clone()
        return x.flatten(1, -2).mean(1) if x.ndim > 2 else x.clone()


def _mean(name: str, rows: list[Tensor]) -> Tensor:
    """Of a layer that is called several times."""
    shapes = {tuple(part.shape) for part in rows}
    if len(shapes) > 1:
        raise ValueError(
            f"layer {name!r} is called with inputs of different sizes, {sorted(shapes)} numbers; "
            f"leave it out, layers=[...]"
        )
    return torch.stack(rows).mean(0)


def _is_plain(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2


def _told(x: Any) -> str:
    return f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def _place(x: Tensor) -> object:
    """Equal for tensors of the same rows in the same memory; whether they are flat is no matter."""
    version = None if x.is_inference() else x._version  # changed in place, they are others
    order = x.flatten(1).stride() if x.is_contiguous() else (*x.shape, *x.stride())
    return x.data_ptr(), x.numel(), len(x), order, version


def _chosen(model: nn.Module, patterns: str | Iterable[str] | None) -> list[str]:
    """Names of the layers that are read."""
    names = [name for name, _ in model.named_modules() if name]
    if patterns is None:
        usual = (nn.Linear, _ConvNd)
        return [name for name, layer in model.named_modules() if isinstance(layer, usual)]
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"no layer is called {pattern!r}{nearest(pattern, names)}")
    return [name for name in names if any(fnmatchcase(name, p) for p in wanted)]


@contextmanager
def _watched(model: nn.Module, names: list[str], look: Any) -> Iterator[None]:
    by_name = dict(model.named_modules())
    if gone := [name for name in names if name not in by_name]:
        raise ValueError(f"layer {gone[0]!r} is not there any more; make a new reader")

    def hook(name: str) -> Any:
        return lambda layer, args, kwargs: look(name, layer, args or tuple(kwargs.values()))

    handles = [
        by_name[name].register_forward_pre_hook(hook(name), with_kwargs=True) for name in names
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _of_input(width: int, image: tuple[int, ...] | None, count: int) -> Lift:
    """Patches of images in colour, smooth functions of grey ones, random ones of vectors."""
    if image is None:
        return RandomFeatures(width, count, "fourier")
    if len(image) not in (2, 3) or math.prod(image) != width:
        raise ValueError(f"image must be (h, w) or (c, h, w) with {width} numbers, got {image}")
    if len(image) == 3 and image[0] > 1:
        size = min(6, *image[1:])
        cells = min(_CELLS, min(image[1:]) - size + 1)
        return PatchFeatures((image[0], image[1], image[2]), -(-count // 4), size=size, grid=cells)
    return RandomFeatures(width, count, "fourier", spread=1.0, unit=True, image=image)
