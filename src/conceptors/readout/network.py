"""The inputs of a network's layers, side by side: features for a readout of the whole network."""

import math
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from functools import partial
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

_MAPS = (_ConvNd, _BatchNorm, nn.GroupNorm)  # layers whose inputs are [n, channels, *positions]
_CELLS, _PATCH_CELLS = 4, 2  # in each direction, that maps and patches are averaged over


class LayerInputs(nn.Module):
    """The inputs of a network and of its layers, side by side, as features `[n, out_features]`.

    Feature maps `[n, c, h, w]` are averaged over 4 × 4 cells, sequences `[n, tokens, d]` over their
    tokens. Integers `[n, tokens]` that the network embeds are counted: one feature per word of
    the vocabulary, without padding. The network runs in evaluation mode without gradients, and is
    not changed. An input that several layers share appears once.

    Args:
        model: the network.
        example: a small batch of inputs: a tensor, or a mapping of arguments by name.
        layers: name patterns (shell style) of the layers whose inputs are read; by default all
            linear layers and convolutions.

    Attributes:
        out_features: number of features.
        widths: number of features of each layer, in order. `"input"` is the network's input, if it
            is one tensor of floats, or the counts of its tokens (`"(input)"` if a layer is called
            input).

    >>> model = nn.Sequential(nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> reader = LayerInputs(model, torch.randn(2, 8))
    >>> reader.widths, reader(torch.zeros(4, 8)).shape
    ({'input': 8, '2': 5}, torch.Size([4, 13]))
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
        self._layers = {name: name for name in names if name}
        # The root module's input is the network's; its name is "" there.
        self._input = "(input)" if "input" in names else "input"
        source = _embedding_of_tokens(model, example) if plain is None else ""
        if source is not None:
            self._layers = {self._input: source, **self._layers}
        rows = self._read((example,), {})
        self.widths: dict[str, int] = {}
        for name in (name for name in self._layers if name in rows):
            x = rows[name]
            # An example of zeros shows nothing about what layers share.
            if not x.any() or not any(torch.equal(x, rows[other]) for other in self.widths):
                self.widths[name] = x.shape[1]
        if not self.widths:
            raise ValueError("no layer was called with a tensor of floats; name other layers")
        self._layers = {name: self._layers[name] for name in self.widths}
        self.out_features = sum(self.widths.values())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Compute features `[n, out_features]`; the arguments are those of the network."""
        rows = self._read(args, kwargs)
        return torch.cat([rows[name] for name in self.widths], 1)

    def lift(self, count: int = 2000, *, image: tuple[int, ...] | None = None) -> SideBySide:
        """Create lifts for a readout of these features: one for the input, one for all layers.

        Args:
            count: random features of each lift. Colour images get a quarter as many filters,
                averaged over four cells. Layers with more features than that are not lifted, nor
                are vocabularies of up to four times as many words.
            image: (h, w) or (c, h, w) of an input image. Not needed for inputs `[n, c, h, w]`.
        """
        count = checks.whole(count, "count", 1)
        parts: list[Lift] = []
        if self._shape is not None:
            image = self._shape if image is None and len(self._shape) == 3 else image
            parts.append(_lift_of_input(math.prod(self._shape), image, count))
        elif words := self.widths.get(self._input, 0):
            is_small = words <= 4 * count
            parts.append(Scaling(words) if is_small else RandomFeatures(words, count, shape=0.0))
        width = self.out_features - sum(part.in_features for part in parts)
        if width:
            parts.append(Scaling(width) if width >= count else RandomFeatures(width, count))
        return SideBySide(*parts)

    def _read(self, args: tuple[Any, ...], kwargs: Any) -> dict[str, Tensor]:
        """Return rows `[n, k]` of each layer, averaged over its calls."""
        if len(args) == 1 and isinstance(args[0], Mapping):
            return self._read((), {**args[0], **kwargs})
        calls: dict[str, list[Tensor]] = {}
        mask = kwargs.get("attention_mask")
        modules = dict(self.model.named_modules())

        def hook(name: str) -> Any:
            def look(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                x: Any = next(iter((*args, *kwargs.values())), None)
                if isinstance(layer, nn.Embedding):
                    row = _counts(layer, x, mask)
                elif _is_plain(x):
                    row = x.flatten(1) if layer is self.model else _pooled(layer, x)
                else:
                    return
                calls.setdefault(name, []).append(row.clone())

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
                f"the layers were called with different numbers of rows, {counts}, so they cannot "
                f"stand side by side; name layers with one row per sample, layers=[...]"
            )
        return rows


def _is_plain(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 2


def _embedding_of_tokens(model: nn.Module, example: Any) -> str | None:
    """The name of the embedding that receives integers `[n, tokens]` of the example, if any."""
    named = example if isinstance(example, Mapping) else {}
    given = [*named.values()] or [example]
    calls: list[tuple[str, Any]] = []
    with undisturbed(model), ExitStack() as stack:
        for name, layer in model.named_modules():
            if isinstance(layer, nn.Embedding):
                look = partial(lambda name, _, args: calls.extend((name, x) for x in args), name)
                stack.callback(layer.register_forward_pre_hook(look).remove)
        model(**named) if named else model(example)
    tokens = [x for x in given if isinstance(x, Tensor) and x.ndim == 2]
    return next((name for name, x in calls if any(torch.equal(x, y) for y in tokens)), None)


def _counts(layer: nn.Embedding, tokens: Tensor, mask: Tensor | None) -> Tensor:
    """How often each word of the vocabulary occurs `[n, words]`, without padding."""
    is_word = torch.ones_like(tokens) if layer.padding_idx is None else tokens != layer.padding_idx
    if mask is not None and mask.shape == tokens.shape:
        is_word = is_word * mask
    counts = torch.zeros(len(tokens), layer.num_embeddings, device=tokens.device)
    return counts.scatter_add_(1, tokens.long(), is_word.float())


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
        if sizes := [min(_CELLS, size) for size in x.shape[2:]]:
            pool: Any = getattr(functional, f"adaptive_avg_pool{len(sizes)}d")
            x = pool(x, sizes)
        return x.flatten(1)
    return x.flatten(1, -2).mean(1) if x.ndim > 2 else x


def _lift_of_input(width: int, image: tuple[int, ...] | None, count: int) -> Lift:
    """Patches for colour images, smooth weights for grey images, random weights for vectors."""
    if image is None:
        return RandomFeatures(width, count, "fourier")
    if len(image) == 3 and image[0] > 1 and math.prod(image) == width:
        size = min(6, *image[1:])
        grid = min(_PATCH_CELLS, min(image[1:]) - size + 1)
        return PatchFeatures((image[0], image[1], image[2]), -(-count // 4), size=size, grid=grid)
    return RandomFeatures(width, count, "fourier", image=image)
