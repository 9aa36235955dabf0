"""Freeze what layers update by themselves in training: BatchNorm and spectral norm.

Shielded weights preserve a layer's outputs only while its inputs stay the same. BatchNorm in
training mode changes them, because its running statistics follow the new task. Frozen layers
behave as in evaluation mode: BatchNorm normalises with the statistics of the remembered tasks, and
spectral norm does not iterate.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils.hooks import RemovableHandle


class Statistics:
    """Freeze and release the statistics of a model's layers."""

    def __init__(self, batchnorm: bool) -> None:
        """`batchnorm`: whether to freeze BatchNorm too."""
        self._batchnorm = batchnorm
        self._handles: WeakKeyDictionary[nn.Module, list[RemovableHandle]] = WeakKeyDictionary()
        self._switch = _Switch()

    def freeze(self, model: nn.Module) -> None:
        """Freeze every layer of a model, including new ones."""
        self._switch.on = True
        for layer in model.modules():
            if layer not in self._handles and self._updates_itself(layer):
                evaluation = _Evaluation(self._switch)
                self._handles[layer] = [
                    layer.register_forward_pre_hook(evaluation.enter, prepend=True),
                    layer.register_forward_hook(evaluation.leave, always_call=True),
                ]

    def release(self) -> None:
        """Release all layers, and copies of them."""
        self._switch.on, self._switch = False, _Switch()
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def _updates_itself(self, layer: nn.Module) -> bool:
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            return self._batchnorm and layer.track_running_stats
        older = any(isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values())
        return older or isinstance(layer, _SpectralNorm)


class _Switch:
    """Whether layers are frozen; off in copies of a model, which have no shield."""

    on = False

    def __reduce__(self) -> tuple[type[_Switch], tuple[()]]:
        return _Switch, ()


class _Evaluation:
    """Switch one layer to evaluation mode for a call.

    The flag is set without `nn.Module.__setattr__`, which is slow.
    """

    def __init__(self, switch: _Switch) -> None:
        self._switch = switch
        self.training: bool | None = None  # None outside of a call

    def enter(self, layer: nn.Module, _args: Any) -> None:
        if self._switch.on:
            self.training = layer.training
            layer.__dict__["training"] = False

    def leave(self, layer: nn.Module, _args: Any, _output: Any) -> None:
        if self.training is not None:  # else another hook failed before
            layer.__dict__["training"], self.training = self.training, None
