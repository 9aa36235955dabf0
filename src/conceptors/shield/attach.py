"""What a shield is attached to: the model and the optimizer inside their wrappers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from conceptors.shield.watch import tell


class Holder:
    """Who shields a model, and how many tasks it has remembered."""

    def __init__(self, shield: object) -> None:
        self.shield = weakref.ref(shield)
        self.n_tasks = 0


_SHIELDED: weakref.WeakKeyDictionary[nn.Module, Holder] = weakref.WeakKeyDictionary()


def claim_model(model: nn.Module, shield: object) -> None:
    """Note that a model has a shield; warn of one that is gone with what it remembered.

    Raises:
        ValueError: it, a part of it, or what it is a part of, has one already.
    """
    parts = set(model.modules())
    for other, holder in list(_SHIELDED.items()):
        if holder.shield() is not None and (other in parts or model in set(other.modules())):
            raise ValueError(
                f"this {type(model).__name__} already has a shield; use that one, or call its "
                f"detach() first"
            )
    before = _SHIELDED.get(model)
    if before is not None and before.n_tasks:
        tell(
            f"a shield that had remembered {before.n_tasks} task{'s'[: before.n_tasks > 1]} of "
            f"this {type(model).__name__} is gone, and this new one protects nothing of them. Keep "
            f"one shield for all tasks, or load its state; detach() ends one that is done with"
        )
    _SHIELDED[model] = Holder(shield)


def note_tasks(model: nn.Module, n_tasks: int) -> None:
    """How many tasks a model's shield has remembered."""
    if model in _SHIELDED:
        _SHIELDED[model].n_tasks = n_tasks


def release_model(model: nn.Module) -> None:
    """Note that a model has no shield any more."""
    _SHIELDED.pop(model, None)


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside torch.compile and DistributedDataParallel wrappers."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def unwrap_optimizer(optimizer: Any) -> Optimizer:
    """The torch optimizer inside wrappers, as accelerate and others make them."""
    inner, seen = optimizer, 0
    while isinstance(getattr(inner, "optimizer", None), Optimizer) and seen < 10:
        inner, seen = inner.optimizer, seen + 1
    if not isinstance(inner, Optimizer):
        raise TypeError(f"guard needs a torch.optim.Optimizer, got {type(optimizer).__name__}")
    return inner


def check_parameters(optimizer: Optimizer, model: nn.Module) -> None:
    """Whether an optimizer holds parameters of this model only."""
    own = {id(p) for p in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    foreign = [list(p.shape) for p in held if id(p) not in own]
    if foreign:
        raise ValueError(
            f"the optimizer holds {len(foreign)} of {len(held)} parameters that are not the "
            f"shielded model's (shapes {foreign[:3]}{', ...' if len(foreign) > 3 else ''}); "
            f"make a separate optimizer for them, or make this one after moving the model"
        )


def reshard(model: nn.Module) -> None:
    """Cut the parameters of FSDP2 modules again, which a forward pass leaves gathered."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # type: ignore[operator]


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Tensors made in inference mode could not be changed by a step."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield
