"""Detect buffers that change after a task is remembered, such as BatchNorm's running statistics.

Conceptors protect only weights. A changed buffer changes the model's outputs on remembered data.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from conceptors.shield.blocks import is_sharded, matches

_SAMPLED = 4096  # numbers of a buffer that are compared
_TOLERATED = 1e-2  # relative change, such as rounding to bfloat16


class Buffers:
    """The floating-point buffers of a model at the time of the last `remember`."""

    def __init__(self, exclude: list[str], follows_batchnorm: bool) -> None:
        self._exclude, self._follows_batchnorm = exclude, follows_batchnorm
        self._values: dict[str, Tensor] = {}
        self._reported: set[str] = set()

    def take(self, model: nn.Module) -> None:
        """Trust the buffers as they are now."""
        self._values = {name: _sample(b).clone() for name, b in self._buffers(model).items()}

    def distrust(self) -> None:
        """Forget the trusted values, because others are about to be loaded."""
        self._values = {}

    def changed(self, model: nn.Module) -> list[str]:
        """Return the names of buffers that differ from the trusted values, each name only once."""
        buffers = self._buffers(model)
        names = [
            name
            for name, value in self._values.items()
            if name in buffers
            and name not in self._reported
            and not _is_same(_sample(buffers[name]), value)
        ]
        self._reported.update(names)
        return names

    def _buffers(self, model: nn.Module) -> dict[str, Tensor]:
        followed = {
            id(buffer)
            for layer in model.modules()
            if self._follows_batchnorm and isinstance(layer, _NormBase)
            for buffer in layer.buffers(recurse=False)
        }
        return {
            name: buffer
            for name, buffer in model.named_buffers()
            if buffer.is_floating_point()
            and id(buffer) not in followed
            and not (buffer.is_meta or is_sharded(buffer) or matches([name], self._exclude))
        }


def _sample(buffer: Tensor) -> Tensor:
    """Return evenly spaced numbers of a buffer."""
    values = buffer.detach().flatten()
    return values[:: max(1, len(values) // _SAMPLED)]


def _is_same(now: Tensor, before: Tensor) -> bool:
    if now.shape != before.shape:
        return False
    now, before = now.double().cpu().nan_to_num(), before.double().cpu().nan_to_num()
    return bool((now - before).norm() <= _TOLERATED * before.norm())
