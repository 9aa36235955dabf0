"""Attach a shield to its model and its optimizers, and freeze the model's statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod

import torch
from torch import nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from conceptors.shield.health import warn_unprotected

Handles = WeakKeyDictionary[nn.Module, list[RemovableHandle]]

_SHIELDS: WeakKeyDictionary[nn.Module, WeakMethod[Callable[[Optimizer], None]]] = (
    WeakKeyDictionary()
)
_TASKS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()  # remembered by its shield
_HOOK: list[RemovableHandle] = []  # one for all shields


def claim_model(model: nn.Module, before_any_step: Callable[[Optimizer], None]) -> None:
    """Record that a model has a shield; warn if an earlier shield and its tasks are lost.

    Args:
        before_any_step: a method of the shield, called before each step of any optimizer.

    Raises:
        ValueError: the model, a part of it, or a module that contains it already has a shield.
    """
    parts = set(model.modules())
    for other, method in list(_SHIELDS.items()):
        if method() is not None and (other in parts or model in set(other.modules())):
            raise ValueError(
                f"this {type(model).__name__}, a part of it, or a module that contains it already "
                f"has a shield, and a model can have only one; use that shield, or call its "
                f"detach() first"
            )
    lost = _TASKS.pop(model, 0)
    if lost:
        warn_unprotected(
            f"a shield that had remembered {lost} task{'s'[: lost > 1]} of this "
            f"{type(model).__name__} is gone, and the new shield does not protect them. Use one "
            f"shield for all tasks, or load its saved state. Call detach() on a shield that is not "
            f"needed any more"
        )
    _SHIELDS[model] = WeakMethod(before_any_step)
    if not _HOOK:
        _HOOK.append(register_optimizer_step_pre_hook(_before_any_step))


def _before_any_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    for method in [weak() for weak in _SHIELDS.values()]:
        if method is not None:
            method(optimizer)


def note_tasks(model: nn.Module, n_tasks: int) -> None:
    """Record how many tasks a model's shield has remembered."""
    _TASKS[model] = n_tasks


def release_model(model: nn.Module) -> None:
    """Record that a model has no shield."""
    _SHIELDS.pop(model, None)
    _TASKS.pop(model, None)
    if _HOOK and not _SHIELDS:
        _HOOK.pop().remove()


def check_model(model: object) -> None:
    """Raise an error unless this is a module whose layers a shield can observe."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"Shield needs an nn.Module, got {type(model).__name__}; pass the model")
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"{type(model).__name__} is compiled by torch.jit.script, which hides the inputs of "
            f"its layers from a shield; shield the model before it is scripted"
        )


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile and DistributedDataParallel wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def reshard(model: nn.Module) -> None:
    """Reshard the parameters of FSDP2 modules, which stay gathered after a forward pass."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # type: ignore[operator]


def check_optimizer(given: Any, model: nn.Module) -> Optimizer:
    """Return the torch optimizer inside wrappers, such as those of accelerate.

    Raises:
        TypeError: there is none.
        ValueError: it steps parameters that are not part of the model, or evaluates other weights
            than it trains.
    """
    optimizer = given
    for _ in range(10):
        inner = getattr(optimizer, "optimizer", None)
        optimizer = inner if isinstance(inner, Optimizer) else optimizer
    kind = type(optimizer).__name__
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"guard needs a torch.optim.Optimizer, got {kind}; pass the optimizer that steps the "
            f"model"
        )
    in_model = {id(p) for p in model.parameters()}
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    foreign = [list(p.shape) for p in stepped if id(p) not in in_model]
    if foreign:
        raise ValueError(
            f"the optimizer steps {len(foreign)} of {len(stepped)} parameters that are not part of "
            f"the shielded model (shapes {foreign[:3]}{', ...' if len(foreign) > 3 else ''}), and "
            f"the shield cannot protect them; use a separate optimizer for them, or create this "
            f"one after moving the model"
        )
    if all(callable(getattr(optimizer, name, None)) for name in ("train", "eval")):
        raise ValueError(
            f"{kind} evaluates other weights than it trains (it has train() and eval()), and a "
            f"shield protects only weights that the optimizer steps; use an optimizer without such "
            f"a switch, and average weights in a copy of the model"
        )
    return optimizer


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode: an optimizer cannot change tensors that were created in it."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


# --- statistics that layers update in training: BatchNorm and spectral norm ---------------------


class EvaluationSwitch:
    """Hooks that switch one layer to evaluation mode for a call; off in copies of the layer.

    The flag is set without `nn.Module.__setattr__`, which is slow.
    """

    def __init__(self, is_on: bool = True) -> None:
        self._is_on = is_on
        self._training: bool | None = None  # None outside of a call

    def enter(self, layer: nn.Module, _args: Any) -> None:
        if self._is_on:
            self._training = layer.training
            layer.__dict__["training"] = False

    def leave(self, layer: nn.Module, _args: Any, _output: Any) -> None:
        if self._training is not None:  # else another hook failed before
            layer.__dict__["training"], self._training = self._training, None

    def __reduce__(self) -> tuple[type[EvaluationSwitch], tuple[bool]]:
        return EvaluationSwitch, (False,)


def freeze_statistics(model: nn.Module, frozen: Handles, batchnorm: bool) -> None:
    """Freeze the statistics of every layer, or of all but BatchNorm, including new layers.

    Shielded weights preserve a layer's outputs only while its inputs stay the same. Running
    statistics would follow the new task.
    """
    for layer in model.modules():
        if layer not in frozen and _updates_itself(layer, batchnorm):
            switch = EvaluationSwitch()
            frozen[layer] = [
                layer.register_forward_pre_hook(switch.enter, prepend=True),
                layer.register_forward_hook(switch.leave, always_call=True),
            ]


def release_statistics(frozen: Handles) -> None:
    """Let all statistics follow the data again."""
    for handle in [handle for handles in frozen.values() for handle in handles]:
        handle.remove()
    frozen.clear()


def _updates_itself(layer: nn.Module, batchnorm: bool) -> bool:
    if isinstance(layer, nn.modules.batchnorm._NormBase):
        return batchnorm and layer.track_running_stats
    older = any(isinstance(hook, SpectralNorm) for hook in layer._forward_pre_hooks.values())
    return older or isinstance(layer, _SpectralNorm)
