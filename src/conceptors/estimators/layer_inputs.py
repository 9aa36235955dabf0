"""What enters the layers of a network, side by side: features for a readout of all of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from conceptors._internal import checks
from conceptors._internal.batches import undisturbed
from conceptors._internal.suggest import nearest
from conceptors.estimators.lift import Lift, RandomFeatures, Scaling
from conceptors.estimators.patches import PatchFeatures
from conceptors.estimators.side_by_side import SideBySide

_CELLS = 2  # in each direction, that answers to patches are averaged over


class LayerInputs(nn.Module):
    """The inputs of a network and of its layers as features `[n, out_features]`.

    A readout of the last layer alone sees what was made for the classes that the network knows.
    What enters the layers before it, and the input itself, is more general, and moves less.

    Maps of convolutions are averaged over a grid of cells, sequences over their tokens. The network
    runs in evaluation mode and without gradients, and is left as it is. What two layers share is
    read once.

    Args:
        model: the network.
        example: some inputs for it: a tensor, or a mapping of arguments by name.
        layers: name patterns (shell style) of the layers whose inputs are read; by default those
            of all linear layers and convolutions.
        inputs: whether to read the input itself, too, if it is one tensor of floats.
        grid: cells in each direction.

    Attributes:
        out_features: how many numbers a sample has.
        widths: the same by layer, in their order; `"input"` is the input itself.

    Raises:
        ValueError: a pattern that fits no layer, or none that is called with one row per sample.

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
        self.model = model
        self._grid = checks.whole(grid, "grid", 1)
        self._shape: tuple[int, ...] | None = None  # of the input, if that is read
        if inputs and isinstance(example, Tensor) and _is_plain(example):
            self._shape = tuple(example.shape[1:])
        self._names = _chosen(model, layers)
        self.widths: dict[str, int] = {}
        found = self._read(example)
        self._names = [name for name in found if name != "input"]
        self.widths = {name: rows.shape[1] for name, rows in found.items()}
        self.out_features = sum(self.widths.values())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Features `[n, out_features]` of what the network would be called with."""
        found = self._read(*args, **kwargs)
        for name, width in self.widths.items():
            if name not in found:
                raise ValueError(f"layer {name!r} was not called; was it with the example?")
            if found[name].shape[1] != width:
                raise ValueError(
                    f"layer {name!r} has {found[name].shape[1]} features for this input, and "
                    f"{width} for the example; inputs of other sizes need a reader of their own"
                )
        return torch.cat([found[name] for name in self.widths], 1)

    def lift(self, count: int = 2000, *, image: tuple[int, ...] | None = None) -> SideBySide:
        """Lifts for a readout of these features: of the input, and of all that layers get.

        Args:
            count: random features of each, and of natural images a quarter as many patches in four
                cells; where layers give more than that, they are read as they are.
            image: (h, w) or (c, h, w) of the input, if it is an image; known where inputs are
                `[n, c, h, w]`.
        """
        count = checks.whole(count, "count", 1)
        rest = self.out_features - self.widths.get("input", 0)
        given = Scaling(rest) if rest >= count else RandomFeatures(rest, count)
        parts: list[Lift] = [given] if rest else []
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

    def _read(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Rows `[n, k]` of each layer that is called, in their order."""
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self._read(**{**args[0], **kwargs})
        seen: dict[str, list[Tensor]] = {}
        held: dict[tuple[int, int], tuple[str, Tensor]] = {}  # held: addresses are not used again
        if self._shape is not None:
            x = args[0] if args else next(iter(kwargs.values()))
            if not _is_plain(x):
                raise TypeError(f"the input must be a tensor of floats, got {_told(x)}")
            seen["input"], held[_place(x)] = [x.flatten(1)], ("input", x)
        by_layer = dict(self.model.named_modules())

        def look(name: str, layer: nn.Module, given: tuple[Any, ...]) -> None:
            x = given[0] if given else None
            if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
                return
            owner = held.setdefault(_place(x), (name, x))[0]
            if owner == name:
                seen.setdefault(name, []).append(self._pooled(layer, x))

        with undisturbed(self.model), _watched(by_layer, self._names, look):
            self.model(*args, **kwargs)
        found = {name: torch.stack(rows).mean(0) for name, rows in seen.items()}
        counts = {name: len(rows) for name, rows in found.items()}
        if not counts:
            raise ValueError("none of these layers was called with a tensor of floats")
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"layers were called with different numbers of rows: {counts}; name those of one "
                f"row per sample, layers=[...]"
            )
        return found

    def _pooled(self, layer: nn.Module, x: Tensor) -> Tensor:
        """What enters a layer as one row for each sample, in memory of its own."""
        if isinstance(layer, _ConvNd):
            sizes = [min(self._grid, size) for size in x.shape[2:]]
            pool: Any = getattr(functional, f"adaptive_avg_pool{len(sizes)}d")
            found: Tensor = pool(x, sizes)
            return found.flatten(1).clone()
        return x.flatten(1, -2).mean(1) if x.ndim > 2 else x.clone()


def _is_plain(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2


def _told(x: Any) -> str:
    return f"{list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__


def _place(x: Tensor) -> tuple[int, int]:
    """Equal for tensors of the same numbers in the same memory, whatever their shape."""
    return x.data_ptr(), x.numel()


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
def _watched(by_layer: dict[str, nn.Module], names: list[str], look: Any) -> Iterator[None]:
    def hook(name: str) -> Any:
        return lambda layer, args, kwargs: look(name, layer, args or tuple(kwargs.values()))

    handles = [
        by_layer[name].register_forward_pre_hook(hook(name), with_kwargs=True) for name in names
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
