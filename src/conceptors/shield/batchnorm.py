"""BatchNorm's running statistics between tasks.

Shielded weights keep a layer's outputs only as long as its inputs stay the same. BatchNorm in
training mode breaks that: its running statistics follow the new task. While held, BatchNorm
layers normalise with the statistics of the remembered tasks, in training as in evaluation.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


def hold_statistics(model: nn.Module) -> list[RemovableHandle]:
    """Make every BatchNorm layer with running statistics behave as in evaluation."""
    handles = []
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
            hold = _Hold()
            handles.append(layer.register_forward_pre_hook(hold.enter))
            handles.append(layer.register_forward_hook(hold.leave, always_call=True))
    return handles


class _Hold:
    """Switches one layer to evaluation for a call; can be copied and pickled with the model.

    The flag is set past `nn.Module.__setattr__`, which takes longer than the rest.
    """

    training: bool | None = None  # None outside of a call

    def enter(self, layer: nn.Module, _args: Any) -> None:
        self.training = layer.training
        layer.__dict__["training"] = False

    def leave(self, layer: nn.Module, _args: Any, _output: Any) -> None:
        if self.training is not None:  # else another hook failed before
            layer.__dict__["training"], self.training = self.training, None
