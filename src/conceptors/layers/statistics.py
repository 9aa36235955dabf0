"""Statistics that layers update in training: those of BatchNorm and of spectral norm."""

from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils.hooks import RemovableHandle

_FROZEN: WeakKeyDictionary[nn.Module, list[RemovableHandle]] = WeakKeyDictionary()
_TRAINING: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # of frozen layers in a call


def freeze_statistics(model: nn.Module, frozen: bool, batchnorm: bool = True) -> None:
    """Freeze the running statistics of all layers, or let them follow the data again.

    They would follow the new task, and shielded weights preserve a layer's outputs only while its
    inputs stay the same. Those of BatchNorm are frozen only with `batchnorm`.
    """
    for layer in model.modules():
        if not frozen:
            for handle in _FROZEN.pop(layer, []):
                handle.remove()
        elif layer not in _FROZEN and _updates_itself(layer, batchnorm):
            _FROZEN[layer] = [
                layer.register_forward_pre_hook(_evaluate, prepend=True),
                layer.register_forward_hook(_train_again, always_call=True),
            ]


def _evaluate(layer: nn.Module, _args: Any) -> None:
    """Switch a layer to evaluation mode for a call; copies of a layer are not frozen."""
    if layer in _FROZEN:
        _TRAINING[layer] = layer.training
        layer.__dict__["training"] = False  # nn.Module.__setattr__ is slow


def _train_again(layer: nn.Module, _args: Any, _output: Any) -> None:
    if layer in _TRAINING:  # else another hook failed before
        layer.__dict__["training"] = _TRAINING.pop(layer)


def _updates_itself(layer: nn.Module, batchnorm: bool) -> bool:
    if isinstance(layer, _NormBase):
        return batchnorm and layer.track_running_stats
    older = any(isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values())
    return older or isinstance(layer, _SpectralNorm)
