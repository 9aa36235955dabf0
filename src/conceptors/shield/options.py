"""Check the model, the optimizers and the options of a shield; look up options by layer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from conceptors._internal import checks
from conceptors._internal.checks import nearest
from conceptors.algebra.aperture import Auto, Energy, Quota
from conceptors.shield.blocks import matches

Choice = TypeVar("Choice")
Aperture = float | Auto | Quota | Energy
_DENSE = 8192  # layers with more inputs store a sketch instead of d x d matrices


@dataclass(frozen=True)
class Protection:
    """How much of each layer is protected; see `Shield` for the fields."""

    apertures: Aperture | Mapping[str, Aperture]
    hard: bool
    rank: int | float | None

    def aperture(self, name: str) -> Aperture:
        """Return the aperture of a layer."""
        if not isinstance(self.apertures, Mapping):
            return self.apertures
        for pattern, value in self.apertures.items():
            if matches([name], [pattern]):
                return value
        raise ValueError(
            f"no aperture for layer {name!r}: none of the patterns {list(self.apertures)} matches "
            f"it; add a default, {{..., '*': 'auto'}}"
        )

    def _auto(self, name: str) -> Auto | None:
        choice = self.aperture(name)
        return choice if isinstance(choice, Auto) and not self.hard else None

    def is_auto(self, name: str) -> bool:
        """Whether a layer has an automatic aperture with soft directions."""
        return self._auto(name) is not None

    def claims_all(self, name: str) -> bool:
        """Whether a layer's hard conceptor claims every direction above rounding."""
        choice = self.aperture(name)
        is_whole = getattr(choice, "share", 0.0) in (1.0, None)
        return self.hard and is_whole and not isinstance(choice, Quota)

    def pull(self, name: str) -> float:
        """Return the strength of a layer's pull; 0 without one."""
        return getattr(self._auto(name), "pull", 0.0)

    def room(self, name: str) -> float:
        """Return the share of a layer's input space that always stays free."""
        return getattr(self._auto(name), "room", 0.0)

    def rank_of(self, dim: int) -> int | None:
        """Return the largest number of protected directions of a layer with `dim` inputs."""
        if self.rank is None:
            return None
        return max(1, round(self.rank * dim)) if isinstance(self.rank, float) else self.rank

    def sketch_rank(self, dim: int) -> int | None:
        """Return the size of a wide layer's sketch; None for layers that store d x d matrices."""
        return None if dim <= _DENSE else self.rank_of(dim) or max(1, dim // 8)


def check_apertures(value: Any) -> Aperture | dict[str, Aperture]:
    """Check the `aperture` of `Shield`."""
    if isinstance(value, Mapping):
        if not value:
            raise ValueError("aperture is an empty mapping; pass {'*': 'auto'} or a number")
        return {str(k): _check_aperture(v) for k, v in value.items()}
    return _check_aperture(value)


def _check_aperture(value: Any) -> Aperture:
    if isinstance(value, (Auto, Quota, Energy)):
        return value
    if isinstance(value, str):
        if value == "auto":
            return Auto()
        known = '"auto", a number, Auto, Quota or Energy'
        raise ValueError(f"aperture must be {known}, got {value!r}")
    return float(checks.aperture(value, torch.Size(()), torch.zeros(1, dtype=torch.float64)))


def check_rank(rank: Any) -> int | float | None:
    """Check a number of directions, or a share of them."""
    if isinstance(rank, float):
        return checks.number(rank, "rank (a share of d)", 0.0, 1.0, open_low=True)
    return None if rank is None else checks.whole(rank, "rank", 1)


def check_patterns(value: Any, name: str) -> list[str]:
    """Return a list of shell-style name patterns, from one pattern or several."""
    patterns = [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{name} needs name patterns (strings), got {patterns!r}")
    return patterns


def check_names(
    model: nn.Module, blocks: Iterable[str], patterns_by_option: Mapping[str, Iterable[str]]
) -> None:
    """Check that each pattern matches a name, because a misspelt pattern has no effect."""
    modules = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    tensors = [n for part in (model.named_parameters(), model.named_buffers()) for n, _ in part]
    names = [*modules, *tensors, *blocks]
    below = [f"{name}.*" for name in modules]  # empty containers too
    for label, patterns in patterns_by_option.items():
        for pattern in patterns:
            if not matches(names, [pattern]) and not matches(below, [pattern]):
                raise ValueError(
                    f"{label} has a pattern that matches no layer, parameter or buffer: {pattern!r}"
                    f"{nearest(pattern, dict.fromkeys(names))}"
                )


def one_of(value: Any, name: str, allowed: tuple[Choice, ...]) -> Choice:
    """Check that a value is one of those that are allowed."""
    if value in allowed:
        return allowed[allowed.index(value)]
    *most, last = map(repr, allowed)
    raise ValueError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")


# --- models and optimizers ----------------------------------------------------------------------


def check_model(model: object) -> nn.Module:
    """Return the model inside torch.compile and DistributedDataParallel wrappers."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"Shield needs an nn.Module, got {type(model).__name__}; pass the model")
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"{type(model).__name__} is compiled by torch.jit.script, which hides the inputs of "
            f"its layers from a shield; shield the model before it is scripted"
        )
    is_wrapper = isinstance(model, nn.parallel.DistributedDataParallel)
    inner = model.module if is_wrapper else getattr(model, "_orig_mod", None)
    return check_model(inner) if isinstance(inner, nn.Module) else model


def check_optimizer(given: Any, model: nn.Module) -> Optimizer:
    """Return the torch optimizer inside wrappers, such as those of accelerate.

    Raises ValueError if a shield cannot protect all weights that the optimizer steps.
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
