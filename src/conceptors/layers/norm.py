"""Normalisation layers: every channel is a group with one weight and one bias."""

from typing import Any

from torch import Tensor, nn

from conceptors.layers.base import Block, Call, Rows, RowsByBlock, Sample, owner_of, register
from conceptors.layers.twin import twin


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


def normalised(layer: nn.Module, x: Tensor) -> Tensor:
    """Compute the output of a layer in evaluation mode without its weight and bias."""
    kind: Any = owner_of(layer)  # a subclass may override forward
    output: Tensor = kind.forward(twin(layer, {"weight": None, "bias": None}), x)
    return output


@register(nn.LayerNorm, nn.RMSNorm)
class LayerNormRule:
    """Normalises each row separately, so only the rows that are used are computed."""

    def blocks(self, layer: Any) -> list[Block]:
        return [channels(None if isinstance(layer, nn.RMSNorm) else "bias")]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        shape = layer.normalized_shape
        rows, weight = sample.unrounded(call.argument(0, "input").flatten(-len(shape)))
        yield "", by_channel(normalised(layer, rows.unflatten(-1, shape)).flatten(2), weight)


@register(
    *(nn.GroupNorm, nn.SyncBatchNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
class ChannelNormRule:
    """Normalises a whole batch `[n, channels, ...]`, with running statistics if there are any."""

    def blocks(self, layer: Any) -> list[Block]:
        return [channels()]

    def rows(self, layer: Any, call: Call, sample: Sample) -> RowsByBlock:
        output = normalised(layer, call.argument(0, "input"))
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
            output = output[None] if output.ndim == layer._get_no_batch_dim() else output
        yield "", by_channel(*sample.unrounded(output.movedim(1, -1)))
