"""The inputs of a network's layers, side by side: features for a readout of the whole network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from conceptors._internal import checks
from conceptors._internal.batches import undisturbed
from conceptors._internal.checks import nearest
from conceptors.readout.features import Lift, RandomFeatures, Scaling, SideBySide
from conceptors.readout.patches import PatchFeatures

_MAPS = (_ConvNd, _BatchNorm, nn.GroupNorm)  # layers whose inputs have channels before places
_CELLS = 4  # in each direction, that maps are averaged over
_PATCH_CELLS = 2


class LayerInputs(nn.Module):
    """The input of a network and the inputs of its layers as features `[n, out_features]`.

    Maps `[n, c, h, w]` are averaged over 4 × 4 cells, sequences `[n, tokens, d]` over their tokens.
    The network runs in evaluation mode and without gradients, and is left as it is. An input that
    several layers share is read once.

    Args:
        model: the network.
        example: some inputs for it: a tensor, or a mapping of arguments by name.
        layers: name patterns (shell style) of the layers whose inputs are read; by default all
            linear layers and convolutions.

    Attributes:
        out_features: number of features.
        widths: the same by layer, in their order. `"input"` is the network's input, if that is one
            tensor of floats, or `"(input)"` where a layer has that name.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Tensor | Mapping[str, Any],
        *,
        layers: str | Iterable[str] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        plain = example if isinstance(example, Tensor) and _is_plain(example) else None
        self._shape = None if plain is None else tuple(plain.shape[1:])
        names = _layer_names(model, layers)
        # The root module's input is the network's; its name is "" there.
        self._layers = {name: name for name in names if name}
        if self._shape is not None:
            self._input = "(input)" if "input" in names else "input"
            self._layers = {self._input: "", **self._layers}
        raw: dict[str, Tensor] = {}
        rows = self._read((example,), {}, raw)
        self.widths: dict[str, int] = {}
        for name, x in raw.items():
            # An example of zeros shows nothing about what layers share.
            if not x.any() or not any(torch.equal(x, raw[other]) for other in self.widths):
                self.widths[name] = rows[name].shape[1]
        if not self.widths:
            raise ValueError("none of these layers was called with a tensor of floats")
        self._layers = {name: self._layers[name] for name in self.widths}
        self.out_features = sum(self.widths.values())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Features `[n, out_features]` of what the network would be called with."""
        rows = self._read(args, kwargs)
        for name, width in self.widths.items():
            if name not in rows:
                raise ValueError(f"layer {name!r} got no tensor of floats, as with the example")
            if rows[name].shape[1] != width:
                raise ValueError(
                    f"layer {name!r} has {rows[name].shape[1]} features for this input, and "
                    f"{width} for the example; create another LayerInputs for other sizes"
                )
        return torch.cat([rows[name] for name in self.widths], 1)

    def lift(self, count: int = 2000, *, image: tuple[int, ...] | None = None) -> SideBySide:
        """Lifts for a readout of these features: one of the input, and one of all layers.

        Args:
            count: random features of each lift. Of images in colour, a quarter as many patches in
                four cells. Layers with more features than that are read as they are.
            image: (h, w) or (c, h, w) of the input, if it is an image; known where inputs are
                `[n, c, h, w]`.
        """
        count = checks.whole(count, "count", 1)
        parts: list[Lift] = []
        if self._shape is not None:
            image = self._shape if image is None and len(self._shape) == 3 else image
            parts.append(_lift_of_input(math.prod(self._shape), image, count))
        elif image is not None:
            raise ValueError("image does not apply: the network's input is not read")
        width = self.out_features - sum(part.in_features for part in parts)
        if width:
            parts.append(Scaling(width) if width >= count else RandomFeatures(width, count))
        return SideBySide(*parts)

    def _read(
        self, args: tuple[Any, ...], kwargs: Any, raw: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Rows `[n, k]` of each layer, in the order of their first calls.

        Of a layer that is called several times, the mean. `raw` receives inputs of first calls.
        """
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self._read((), {**args[0], **kwargs}, raw)
        calls: dict[str, list[Tensor]] = {}
        modules = dict(self.model.named_modules())
        if removed := [name for name, path in self._layers.items() if path not in modules]:
            raise ValueError(f"layer {removed[0]!r} was removed; create another LayerInputs")

        def hook(name: str) -> Any:
            def look(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                x: Any = next(iter((*args, *kwargs.values())), None)
                if _is_plain(x):
                    row = x.flatten(1) if layer is self.model else _pooled(layer, x)
                    calls.setdefault(name, []).append(row.clone())
                    if raw is not None:
                        raw.setdefault(name, x.flatten(1).clone())

            return look

        with undisturbed(self.model), ExitStack() as stack:
            for name, path in self._layers.items():
                handle = modules[path].register_forward_pre_hook(hook(name), with_kwargs=True)
                stack.callback(handle.remove)
            self.model(*args, **kwargs)
        rows = {name: torch.stack(parts).mean(0) for name, parts in calls.items()}
        counts = {name: len(part) for name, part in rows.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"layers were called with different numbers of rows: {counts}; name layers with "
                f"one row per sample, layers=[...]"
            )
        return rows


def _is_plain(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2


def _layer_names(model: nn.Module, patterns: str | Iterable[str] | None) -> list[str]:
    layers = dict(model.named_modules())
    if patterns is None:
        return [name for name, layer in layers.items() if isinstance(layer, (nn.Linear, _ConvNd))]
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in layers):
            raise ValueError(f"no layer is called {pattern!r}{nearest(pattern, layers)}")
    return [name for name in layers if any(fnmatchcase(name, p) for p in patterns)]


def _pooled(layer: nn.Module, x: Tensor) -> Tensor:
    """A layer's input as one row per sample."""
    has_tokens = isinstance(layer, (nn.Linear, nn.LayerNorm))
    if isinstance(layer, _MAPS) or (x.ndim in (4, 5) and not has_tokens):
        sizes = [min(_CELLS, size) for size in x.shape[2:]]
        if sizes:
            pool: Any = getattr(functional, f"adaptive_avg_pool{len(sizes)}d")
            x = pool(x, sizes)
        return x.flatten(1)
    return x.flatten(1, -2).mean(1) if x.ndim > 2 else x


def _lift_of_input(width: int, image: tuple[int, ...] | None, count: int) -> Lift:
    """Patches of images in colour, smooth features of grey ones, random features of vectors."""
    if image is None:
        return RandomFeatures(width, count, "fourier")
    if len(image) not in (2, 3) or math.prod(image) != width:
        raise ValueError(f"image must be (h, w) or (c, h, w) with {width} numbers, got {image}")
    if len(image) == 3 and image[0] > 1:
        size = min(6, *image[1:])
        grid = min(_PATCH_CELLS, min(image[1:]) - size + 1)
        return PatchFeatures((image[0], image[1], image[2]), -(-count // 4), size=size, grid=grid)
    return RandomFeatures(width, count, "fourier", spread=1.0, unit=True, image=image)
