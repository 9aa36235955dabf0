"""Convolutions: rows are patches, extracted in chunks of bounded size."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from conceptors.layers.base import (
    Block,
    Call,
    Rows,
    RowsByBlock,
    Sample,
    multiplied_dtype,
    register,
)

_CHUNK = 2**22  # numbers of the patches in memory at a time


@register(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvRule:
    def blocks(self, layer: Any) -> list[Block]:
        view, layout = _by_group(layer.groups), f"conv{layer.groups}"
        return [Block(view=view, bias_view=view, layout=layout, rows_first=layer.groups == 1)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        x = call.argument(0, "input")
        spatial = len(layer.kernel_size)
        x = x if x.ndim == spatial + 2 else x[None]
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padding = layer._reversed_padding_repeated_twice
        x = functional.pad(x, padding, mode=mode) if any(padding) else x
        windows = windows_of(x, layer.kernel_size, layer.stride, layer.dilation)
        for rows in patches(windows, layer.groups, spatial, sample):
            yield "", rows


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
class ConvTransposeRule:
    """A transposed convolution convolves the input with zeros inserted between its pixels."""

    def blocks(self, layer: Any) -> list[Block]:
        by_group, layout = _by_group(layer.groups), f"conv-transpose{layer.groups}"

        def view(weight: Tensor) -> Tensor:  # of [in, out / g, k...]
            return by_group(weight).transpose(1, 2)

        return [Block(view=view, bias_view=by_group, layout=layout, rows_first=False)]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        x = call.argument(0, "input")
        spatial = len(layer.kernel_size)
        x = x if x.ndim == spatial + 2 else x[None]
        sizes = call.output.shape[-spatial:]
        spread_sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], layer.stride)]
        spread = x.new_zeros(*x.shape[:2], *spread_sizes)
        spread[(..., *(slice(None, None, s) for s in layer.stride))] = x
        padding: list[int] = []
        for axis in reversed(range(spatial)):
            extent = layer.dilation[axis] * (layer.kernel_size[axis] - 1)
            before = extent - layer.padding[axis]
            # as many windows as outputs, output padding included
            padding += [before, sizes[axis] + extent - spread_sizes[axis] - before]
        spread = functional.pad(spread, padding)
        windows = windows_of(spread, layer.kernel_size, (1,) * spatial, layer.dilation)
        for rows, weight in patches(windows, layer.groups, spatial, sample):
            taps = rows.unflatten(-1, (-1, *layer.kernel_size))  # the kernel runs backwards
            yield "", Rows(taps.flip(tuple(range(-spatial, 0))).flatten(2), weight)


def _by_group(groups: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.unflatten(0, (groups, -1))


def windows_of(x: Tensor, kernel: Any, stride: Any, dilation: Any) -> Tensor:
    """View all windows of x `[n, c, ...]` as `[n, positions..., c, k...]` without copying."""
    for axis, (size, step, gap) in enumerate(zip(kernel, stride, dilation), 2):
        x = x.unfold(axis, (size - 1) * gap + 1, step)[..., ::gap]
    return x.movedim(1, 1 + len(kernel))


def patches(windows: Tensor, groups: int, spatial: int, sample: Sample) -> Iterator[Rows]:
    """Yield rows `[g, n, c / g * k]` of windows `[n, positions..., c, k...]`, in chunks."""
    shape, inner = windows.shape[: 1 + spatial], windows.shape[1 + spatial :]
    count, dim, dtype = math.prod(shape), inner.numel() // groups, multiplied_dtype(windows)
    chosen = sample.indices(count, dim, windows.device)
    for part in chosen.split(max(1, _CHUNK // max(1, inner.numel()))):
        rows = windows[torch.unravel_index(part, shape)].to(dtype).reshape(-1, groups, dim)
        yield Rows(rows.movedim(1, 0), count / max(1, len(chosen)))
