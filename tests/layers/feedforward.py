"""Layers that see every sample by itself: linear, convolutions, embeddings, normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from layers import references as ref
from layers.case import (
    Case,
    Draw,
    Feed,
    few_tokens,
    flat_channels,
    half_silent,
    one_sample,
    only,
    shaped,
    silence,
)
from layers.references import Inputs


class Scaled(nn.Linear):
    """A subclass with parameters and a forward pass of its own around the parent's."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input).tanh()


def channels_last(layer: Any) -> nn.Module:
    found: nn.Module = layer.to(memory_format=torch.channels_last)
    return found


def linear_cases() -> list[Case]:
    def same(_layer: Any, output: Tensor) -> Tensor:
        return output.reshape(1, -1, output.shape[-1])

    def add(name: str, make: Callable[[], nn.Module], feed: Feed, **more: Any) -> Case:
        return Case(name, make, feed, outputs=more.pop("outputs", same), **more)

    return [
        add("linear", lambda: nn.Linear(9, 5), lambda d: only(d.x(9))),
        add("linear-3d", lambda: nn.Linear(20, 5), lambda d: only(input=d.x(2, 3, 20))),
        add("linear-subclass", lambda: Scaled(9, 5), shaped(9), outputs=_unscaled),
    ]


def _unscaled(_layer: Any, output: Tensor) -> Tensor:
    return (output / 2).atanh()[None]


def conv_cases() -> list[Case]:
    def add(name: str, make: Callable[[], nn.Module], feed: Feed, **more: Any) -> Case:
        return Case("conv" + name, make, feed, outputs=_conv_outputs, **more)

    def padded(mode: Any) -> Case:
        return add(
            f"2d-{mode}",
            lambda: nn.Conv2d(5, 3, (3, 2), padding=(2, 1), stride=(2, 1), padding_mode=mode),
            shaped(5, 3, 3),
        )

    return [
        add("1d", lambda: nn.Conv1d(6, 4, 3), shaped(6, 7)),
        add(
            "2d",
            lambda: nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1)),
            shaped(4, 4, 5),
        ),
        add(
            "2d-channels-last",
            lambda: channels_last(nn.Conv2d(4, 6, (3, 2), groups=2)),
            lambda d: only(d.x(4, 3, 4).to(memory_format=torch.channels_last)),
        ),
        add("2d-groups", lambda: nn.Conv2d(4, 6, 3, groups=2), shaped(4, 4, 4)),
        *map(padded, ("reflect", "circular")),
        add("3d", lambda: nn.Conv3d(4, 3, 2, stride=(1, 2, 1)), shaped(4, 3, 4, 3)),
    ]


def _conv_outputs(layer: Any, output: Tensor) -> Tensor:
    """What the block gives, `[g, n, out]`, from what the layer gives."""
    output = output if output.ndim == len(layer.kernel_size) + 2 else output[None]
    last = output.movedim(1, -1)
    return last.reshape(-1, layer.groups, last.shape[-1] // layer.groups).movedim(1, 0)


def transposed_cases() -> list[Case]:
    def add(name: str, make: Callable[[], nn.Module], feed: Feed, **more: Any) -> Case:
        return Case("transposed" + name, make, feed, outputs=_conv_outputs, **more)

    return [
        add("1d", lambda: nn.ConvTranspose1d(9, 4, 3, stride=2), shaped(9, 3)),
        add("2d", lambda: nn.ConvTranspose2d(10, 3, 3, padding=1), shaped(10, 2, 2)),
        add(
            "2d-everything",
            lambda: nn.ConvTranspose2d(
                20,
                4,
                (3, 2),
                stride=(2, 3),
                padding=(1, 2),
                output_padding=(1, 2),
                dilation=(1, 2),
                groups=2,
            ),
            lambda d: only(input=d.x(20, 2, 2)),
        ),
        add(
            "2d-deep-padding",  # crops the input: padding beyond the kernel's reach
            lambda: nn.ConvTranspose2d(6, 3, 2, padding=2),
            shaped(6, 4, 4),
        ),
        add("3d", lambda: nn.ConvTranspose3d(10, 2, 2, stride=(1, 2, 1)), shaped(10, 2, 1, 2)),
    ]


def embedding_cases() -> list[Case]:
    def bags(name: str, make: Callable[[], nn.Module], feed: Feed) -> Case:
        return Case(name, make, feed, ref.embedding_rows, old=few_tokens(feed))

    def add(name: str, make: Callable[[], nn.Module], feed: Feed) -> Case:
        return Case(name, make, feed, ref.embedding_rows, old=few_tokens(feed))

    def flat_bags(d: Draw) -> Inputs:
        return only(d.tokens(12, 4 * d.batch), torch.arange(d.batch) * 4)

    def last_offset(d: Draw) -> Inputs:
        offsets = torch.arange(d.batch + 1) * 3
        return only(d.tokens(12, 3 * d.batch), offsets=offsets)

    def weighted(d: Draw) -> Inputs:
        tokens = d.tokens(12, d.batch, 4)
        return only(tokens, per_sample_weights=d.normal(d.batch, 4))

    def sentence(d: Draw) -> Inputs:
        return only(d.tokens(12, d.batch, 4))

    def long_sentence(d: Draw) -> Inputs:
        return only(d.tokens(12, d.batch, 12))

    return [
        add("embedding", lambda: nn.Embedding(12, 4), sentence),
        add("embedding-sparse", lambda: nn.Embedding(12, 4, sparse=True), sentence),
        bags("bag-mean", lambda: nn.EmbeddingBag(12, 4), flat_bags),
        bags("bag-weighted", lambda: nn.EmbeddingBag(12, 4, mode="sum"), weighted),
        bags(
            "bag-sparse-last-offset",
            lambda: nn.EmbeddingBag(12, 4, sparse=True, include_last_offset=True),
            last_offset,
        ),
    ]


def norm_cases() -> list[Case]:
    def add(name: str, make: Callable[[], nn.Module], feed: Feed, old: Feed, **more: Any) -> Case:
        return Case(name, make, feed, outputs=_channel_outputs, old=old, **more)

    def silent(d: Draw) -> Inputs:
        return half_silent(8)(d)

    def trained(norm: Any) -> nn.Module:
        """Running statistics as if it had been trained."""
        if norm.running_mean is not None:
            norm.running_mean.copy_(torch.linspace(-1, 1, norm.num_features))
            norm.running_var.copy_(torch.linspace(0.5, 2, norm.num_features))
        return norm  # type: ignore[no-any-return]

    return [
        add("layer-norm", lambda: nn.LayerNorm(8), shaped(3, 8), one_sample(8)),
        add("rms-norm", lambda: nn.RMSNorm(8), shaped(3, 8), silent),
        add(
            "group-norm",
            lambda: nn.GroupNorm(2, 6),
            shaped(6, 3, 2),
            flat_channels(6, 3, 2),
        ),
        add("batch-norm1d", lambda: trained(nn.BatchNorm1d(6)), shaped(6), one_sample(6)),
        add(
            "batch-norm2d",
            lambda: trained(nn.BatchNorm2d(5)),
            shaped(5, 3, 2),
            flat_channels(5, 3, 2),
        ),
        add(
            "batch-norm2d-no-statistics",
            lambda: nn.BatchNorm2d(5, track_running_stats=False),
            shaped(5, 3, 2),
            silence(5, 4, 2),
        ),
        add(
            "batch-norm3d",
            lambda: trained(nn.BatchNorm3d(4)),
            shaped(4, 2, 2, 2),
            flat_channels(4, 2, 2, 2),
        ),
        add(
            "sync-batch-norm",
            lambda: trained(nn.SyncBatchNorm(5)),
            shaped(5, 3, 2),
            flat_channels(5, 3, 2),
        ),
        add(
            "instance-norm1d-unbatched",
            lambda: nn.InstanceNorm1d(5, affine=True),
            lambda d: only(d.normal(5, 4)),
            lambda d: only(d.normal(5, 4) * 0),
            empty=False,
        ),
        add(
            "instance-norm2d",
            lambda: nn.InstanceNorm2d(5, affine=True),
            shaped(5, 4, 2),
            silence(5, 4, 2),
            empty=False,
        ),
        add(
            "instance-norm2d-statistics",
            lambda: trained(nn.InstanceNorm2d(5, affine=True, track_running_stats=True)),
            shaped(5, 4, 2),
            flat_channels(5, 4, 2),
            empty=False,
        ),
        add(
            "instance-norm3d",
            lambda: nn.InstanceNorm3d(4, affine=True),
            shaped(4, 2, 2, 2),
            silence(4, 2, 2, 2),
            empty=False,
        ),
    ]


def _channel_outputs(layer: Any, output: Tensor) -> Tensor:
    """`[channels, n, 1]`, wherever a layer has its channels."""
    if isinstance(layer, (nn.LayerNorm, nn.RMSNorm)):
        last = output.flatten(-len(layer.normalized_shape))
        return last.reshape(-1, last.shape[-1]).mT[..., None]
    unbatched = {nn.InstanceNorm1d: 2, nn.InstanceNorm2d: 3, nn.InstanceNorm3d: 4}
    first = output[None] if unbatched.get(type(layer)) == output.ndim else output
    return first.movedim(1, 0).reshape(first.shape[1], -1, 1)
