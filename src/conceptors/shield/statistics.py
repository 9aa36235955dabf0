"""What layers change by themselves in training: BatchNorm's statistics, vectors of spectral norms.

Shielded weights keep a layer's outputs only as long as its inputs stay the same. BatchNorm in
training mode breaks that: its running statistics follow the new task. While held, such layers
behave as in evaluation: BatchNorm normalises with the statistics of the remembered tasks, and the
power iteration of spectral norms rests.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils.hooks import RemovableHandle


class Statistics:
    """Holds the statistics of a model's layers, from now on or for a while."""

    def __init__(self, batchnorm: bool) -> None:
        """`batchnorm`: whether that is held too."""
        self._batchnorm = batchnorm
        self._handles: WeakKeyDictionary[nn.Module, list[RemovableHandle]] = WeakKeyDictionary()
        self._switch = _Switch()

    def hold(self, model: nn.Module) -> None:
        """Hold every layer of a model, also those that came since."""
        self._switch.on = True
        for layer in model.modules():
            if layer not in self._handles and self._changes_itself(layer):
                hold = _Hold(self._switch)
                self._handles[layer] = [
                    layer.register_forward_pre_hook(hold.enter, prepend=True),
                    layer.register_forward_hook(hold.leave, always_call=True),
                ]

    def release(self) -> None:
        """Let go of all of them, and of copies of them."""
        self._switch.on, self._switch = False, _Switch()
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def _changes_itself(self, layer: nn.Module) -> bool:
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            return self._batchnorm and layer.track_running_stats
        older = any(isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values())
        return older or isinstance(layer, _SpectralNorm)


class _Switch:
    """Off in copies of a model, which have no shield."""

    on = False

    def __reduce__(self) -> tuple[type[_Switch], tuple[()]]:
        return _Switch, ()


class _Hold:
    """Switches one layer to evaluation for a call.

    The flag is set past `nn.Module.__setattr__`, which takes longer than the rest.
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
