"""Layers that see every sample by itself: linear, convolutions, embeddings, normalisation."""

from collections.abc import Callable
from functools import partial
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
    only,
    shaped,
    silence,
)
from layers.references import Inputs


class Scaled(nn.Linear):
    """A subclass with parameters and a forward pass of its own around the parent's."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input).tanh()


def channels_last(layer: Any) -> Any:
    return layer.to(memory_format=torch.channels_last)


def linear_cases() -> list[Case]:
    def same(_layer: Any, output: Tensor) -> Tensor:
        return output.reshape(1, -1, output.shape[-1])

    def unscaled(_layer: Any, output: Tensor) -> Tensor:
        return (output / 2).atanh()[None]

    return [
        Case("linear", lambda: nn.Linear(9, 5), shaped(9), outputs=same),
        Case("linear-3d", lambda: nn.Linear(20, 5), shaped(2, 3, 20), outputs=same),
        Case("linear-subclass", lambda: Scaled(9, 5), shaped(9), outputs=unscaled),
    ]


def conv_cases() -> list[Case]:
    def add(
        name: str,
        make: Callable[[], nn.Module],
        *shape: int,
        feed: Feed | None = None,
        empty: bool = True,
    ) -> Case:
        return Case(name, make, feed or shaped(*shape), outputs=_conv_outputs, empty=empty)

    def one(d: Draw) -> Inputs:
        return only(d.normal(6, 7))

    def plain() -> nn.Module:
        return nn.Conv2d(4, 6, (3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1))

    def padded(mode: Any) -> nn.Module:
        return nn.Conv2d(5, 3, (3, 2), padding=(2, 1), stride=(2, 1), padding_mode=mode)

    def last(d: Draw) -> Inputs:
        return only(channels_last(d.x(4, 3, 4)))

    def everything() -> nn.Module:
        return nn.ConvTranspose2d(
            20, 4, (3, 2), (2, 3), padding=(1, 2), output_padding=(1, 2), dilation=(1, 2), groups=2
        )

    return [
        add("conv1d", lambda: nn.Conv1d(6, 4, 3), 6, 7),
        add("conv1d-unbatched", lambda: nn.Conv1d(6, 4, 3), feed=one, empty=False),
        add("conv2d", plain, 4, 4, 5),
        add(
            "conv2d-channels-last",
            lambda: channels_last(nn.Conv2d(4, 6, (3, 2), groups=2)),
            feed=last,
        ),
        add("conv2d-groups", lambda: nn.Conv2d(4, 6, 3, groups=2), 4, 4, 4),
        add("conv2d-reflect", lambda: padded("reflect"), 5, 3, 3),
        add("conv2d-circular", lambda: padded("circular"), 5, 3, 3),
        add("conv3d", lambda: nn.Conv3d(4, 3, 2, stride=(1, 2, 1)), 4, 3, 4, 3),
        add("transposed1d", lambda: nn.ConvTranspose1d(9, 4, 3, stride=2), 9, 3),
        add("transposed2d", lambda: nn.ConvTranspose2d(10, 3, 3, padding=1), 10, 2, 2),
        add("transposed2d-everything", everything, feed=lambda d: only(input=d.x(20, 2, 2))),
        # crops the input: padding beyond the kernel's reach
        add("transposed2d-deep-padding", lambda: nn.ConvTranspose2d(6, 3, 2, padding=2), 6, 4, 4),
        add("transposed3d", lambda: nn.ConvTranspose3d(10, 2, 2, (1, 2, 1)), 10, 2, 1, 2),
    ]


def _conv_outputs(layer: Any, output: Tensor) -> Tensor:
    """What the block gives, `[g, n, out]`, from what the layer gives."""
    output = output if output.ndim == len(layer.kernel_size) + 2 else output[None]
    last = output.movedim(1, -1)
    return last.reshape(-1, layer.groups, last.shape[-1] // layer.groups).movedim(1, 0)


def embedding_cases() -> list[Case]:
    def add(name: str, make: Callable[..., nn.Module], feed: Feed, **options: Any) -> Case:
        inputs = few_tokens(feed)
        return Case(name, lambda: make(12, 4, **options), feed, ref.embedding_rows, old=inputs)

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

    offsets = {"sparse": True, "include_last_offset": True}
    return [
        add("embedding", nn.Embedding, sentence),
        add("embedding-sparse", nn.Embedding, sentence, sparse=True),
        add("bag-mean", nn.EmbeddingBag, flat_bags),
        add("bag-weighted", nn.EmbeddingBag, weighted, mode="sum"),
        add("bag-sparse-last-offset", nn.EmbeddingBag, last_offset, **offsets),
    ]


def norm_cases() -> list[Case]:
    def add(name: str, norm: Any, shape: tuple[int, ...], old: Any, empty: bool = True) -> Case:
        feed, inputs = shaped(*shape), old(*shape)
        return Case(name, lambda: trained(norm()), feed, None, _channel_outputs, inputs, empty)

    def trained(norm: Any) -> nn.Module:
        """With running statistics as if it had been trained."""
        if getattr(norm, "running_mean", None) is not None:
            norm.running_mean.copy_(torch.linspace(-1, 1, norm.num_features))
            norm.running_var.copy_(torch.linspace(0.5, 2, norm.num_features))
        return norm  # type: ignore[no-any-return]

    def instance(dim: Any, channels: int, **options: Any) -> Any:
        return lambda: dim(channels, affine=True, **options)

    no_statistics = partial(nn.BatchNorm2d, 5, track_running_stats=False)
    statistics = instance(nn.InstanceNorm2d, 5, track_running_stats=True)
    unbatched = Case(
        "instance-norm1d-unbatched",
        instance(nn.InstanceNorm1d, 5),
        lambda d: only(d.normal(5, 4)),
        outputs=_channel_outputs,
        old=lambda d: only(d.normal(5, 4) * 0),
        empty=False,
    )
    return [
        add("layer-norm", lambda: nn.LayerNorm(8), (3, 8), lambda *_: flat_channels(8)),
        add("rms-norm", lambda: nn.RMSNorm(8), (3, 8), lambda *_: half_silent(8)),
        add("group-norm", lambda: nn.GroupNorm(2, 6), (6, 3, 2), flat_channels),
        add("batch-norm1d", lambda: nn.BatchNorm1d(6), (6,), flat_channels),
        add("batch-norm2d", lambda: nn.BatchNorm2d(5), (5, 3, 2), flat_channels),
        add("batch-norm2d-no-statistics", no_statistics, (5, 3, 2), silence),
        add("batch-norm3d", lambda: nn.BatchNorm3d(4), (4, 2, 2, 2), flat_channels),
        add("sync-batch-norm", lambda: nn.SyncBatchNorm(5), (5, 3, 2), flat_channels),
        unbatched,
        add("instance-norm2d", instance(nn.InstanceNorm2d, 5), (5, 4, 2), silence, False),
        add("instance-norm2d-statistics", statistics, (5, 4, 2), flat_channels, False),
        add("instance-norm3d", instance(nn.InstanceNorm3d, 4), (4, 2, 2, 2), silence, False),
    ]


def _channel_outputs(layer: Any, output: Tensor) -> Tensor:
    """`[channels, n, 1]`, wherever a layer has its channels."""
    if isinstance(layer, (nn.LayerNorm, nn.RMSNorm)):
        last = output.flatten(-len(layer.normalized_shape))
        return last.reshape(-1, last.shape[-1]).mT[..., None]
    unbatched = {nn.InstanceNorm1d: 2, nn.InstanceNorm2d: 3, nn.InstanceNorm3d: 4}
    first = output[None] if unbatched.get(type(layer)) == output.ndim else output
    return first.movedim(1, 0).reshape(first.shape[1], -1, 1)
