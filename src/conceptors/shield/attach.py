"""Attach a shield to its model: wrappers, foreign parameters, one shield per model."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from conceptors.shield.watch import warn_unprotected


class Attachment:
    """The shield of a model, and how many tasks it has remembered."""

    def __init__(self, shield: object) -> None:
        self.shield = weakref.ref(shield)
        self.n_tasks = 0


_ATTACHMENTS: weakref.WeakKeyDictionary[nn.Module, Attachment] = weakref.WeakKeyDictionary()


def claim_model(model: nn.Module, shield: object) -> None:
    """Record that a model has a shield; warn if an earlier shield and its tasks are lost.

    Raises:
        ValueError: the model, a part of it, or a module that contains it already has a shield.
    """
    parts = set(model.modules())
    for other, attachment in list(_ATTACHMENTS.items()):
        if attachment.shield() is not None and (other in parts or model in set(other.modules())):
            raise ValueError(
                f"this {type(model).__name__}, a part of it, or a module that contains it already "
                f"has a shield, and a model can have only one; use that shield, or call its "
                f"detach() first"
            )
    before = _ATTACHMENTS.get(model)
    if before is not None and before.n_tasks:
        warn_unprotected(
            f"a shield that had remembered {before.n_tasks} task{'s'[: before.n_tasks > 1]} of "
            f"this {type(model).__name__} is gone, and the new shield does not protect them. Use "
            f"one shield for all tasks, or load its saved state. Call detach() on a shield that is "
            f"not needed any more"
        )
    _ATTACHMENTS[model] = Attachment(shield)


def note_tasks(model: nn.Module, n_tasks: int) -> None:
    """Record how many tasks a model's shield has remembered."""
    if model in _ATTACHMENTS:
        _ATTACHMENTS[model].n_tasks = n_tasks


def release_model(model: nn.Module) -> None:
    """Record that a model has no shield."""
    _ATTACHMENTS.pop(model, None)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile and DistributedDataParallel wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """Return the torch optimizer inside wrappers, such as those of accelerate."""
    inner, depth = optimizer, 0
    while isinstance(getattr(inner, "optimizer", None), Optimizer) and depth < 10:
        inner, depth = inner.optimizer, depth + 1
    if not isinstance(inner, Optimizer):
        raise TypeError(
            f"guard needs a torch.optim.Optimizer, got {type(optimizer).__name__}; pass the "
            f"optimizer that steps the model"
        )
    return inner


def check_parameters(optimizer: Optimizer, model: nn.Module) -> None:
    """Raise ValueError if an optimizer steps parameters that are not part of this model."""
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


def reshard(model: nn.Module) -> None:
    """Reshard the parameters of FSDP2 modules, which stay gathered after a forward pass."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # type: ignore[operator]


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode: an optimizer cannot change tensors that were created in it."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield
