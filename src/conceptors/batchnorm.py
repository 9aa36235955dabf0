"""BatchNorm's running statistics between tasks.

Shielded weights keep a layer's outputs only as long as its inputs stay the same. BatchNorm in
training mode breaks that: its running statistics follow the new task. While held, BatchNorm
layers normalise with the statistics of the remembered tasks, in training as in evaluation.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

_training: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def hold_statistics(model: nn.Module) -> list[RemovableHandle]:
    """Make every BatchNorm layer with running statistics behave as in evaluation."""
    handles = []
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
            handles.append(layer.register_forward_pre_hook(_enter))
            handles.append(layer.register_forward_hook(_leave, always_call=True))
    return handles


# Module-level functions, so that a shielded model can still be pickled and copied.


def _enter(layer: nn.Module, _args: Any) -> None:
    _training[layer] = layer.training
    layer.training = False


def _leave(layer: nn.Module, _args: Any, _output: Any) -> None:
    layer.training = _training.pop(layer, layer.training)
