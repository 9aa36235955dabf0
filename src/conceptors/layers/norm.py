"""Normalisation layers: every channel is a group with one weight and one bias."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from conceptors.layers.base import Block, Call, Rows, RowsByBlock, Sample, register


def channels(bias: str | None = "bias", weight: str = "weight") -> Block:
    """Return the block that views weight and bias as `[channels, 1, 1]` and `[channels, 1]`."""
    return Block(
        weight=weight,
        bias=bias,
        view=lambda weight: weight.flatten()[:, None, None],
        bias_view=lambda shift: shift.flatten()[:, None],
        layout="channels",
        rows_first=False,
    )


def by_channel(normalised: Tensor, weight: float) -> Rows:
    """Return rows `[channels, n, 1]` of normalised `[1, n, channels]`."""
    return Rows(normalised[0].mT[..., None], weight)


@register(nn.LayerNorm, nn.RMSNorm)
class LayerNormRule:
    """Normalises each row separately, so only the rows that are used are computed."""

    def blocks(self, layer: Any) -> list[Block]:
        return [channels(None if isinstance(layer, nn.RMSNorm) else "bias")]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        x = call.argument(0, "input").flatten(-len(layer.normalized_shape))
        rows, weight = sample.unrounded(x)
        shape = rows.shape[-1:]
        if isinstance(layer, nn.RMSNorm):
            normalised = functional.rms_norm(rows, shape, None, layer.eps)
        else:
            normalised = functional.layer_norm(rows, shape, None, None, layer.eps)
        yield "", by_channel(normalised, weight)


class ChannelNormRule:
    """Normalises a whole batch `[n, channels, ...]`; subclasses implement `normalise`."""

    def blocks(self, layer: Any) -> list[Block]:
        return [channels()]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        normalised = self.normalise(layer, call.argument(0, "input"))
        yield "", by_channel(*sample.unrounded(normalised.movedim(1, -1)))

    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        raise NotImplementedError


@register(nn.GroupNorm)
class GroupNormRule(ChannelNormRule):
    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        return functional.group_norm(x, layer.num_groups, None, None, layer.eps)


@register(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
class BatchNormRule(ChannelNormRule):
    """Normalises as in evaluation: with the running statistics if there are any."""

    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        mean, var = layer.running_mean, layer.running_var
        return functional.batch_norm(x, mean, var, None, None, mean is None, 0.0, layer.eps)


@register(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(ChannelNormRule):
    def normalise(self, layer: Any, x: Tensor) -> Tensor:
        mean, var = layer.running_mean, layer.running_var
        x = x[None] if x.ndim == layer._get_no_batch_dim() else x
        return functional.instance_norm(x, mean, var, None, None, mean is None, 0.0, layer.eps)
