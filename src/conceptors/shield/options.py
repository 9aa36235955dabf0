"""The options of a shield: checked, and looked up by a layer's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from conceptors._internal import checks
from conceptors._internal.checks import nearest
from conceptors.algebra.aperture import Auto, Energy, Quota
from conceptors.shield.blocks import matches

Aperture = float | Auto | Quota | Energy
_DENSE = 8192  # layers of more inputs keep a sketch instead of d x d matrices


@dataclass(frozen=True)
class Protection:
    """How much of each layer is protected; for the fields see `Shield`."""

    apertures: Aperture | Mapping[str, Aperture]
    hard: bool
    rank: int | float | None

    def aperture(self, name: str) -> Aperture:
        """Of the layer with this name."""
        if not isinstance(self.apertures, Mapping):
            return self.apertures
        for pattern, value in self.apertures.items():
            if matches([name], [pattern]):
                return value
        raise ValueError(
            f"no aperture for layer {name!r}: the patterns {list(self.apertures)} do not fit it; "
            f"add a default, {{..., '*': 9.0}}"
        )

    def is_auto(self, name: str) -> bool:
        """Whether a layer's directions stay soft, and are chosen by its data."""
        return isinstance(self.aperture(name), Auto) and not self.hard

    def claims_all(self, name: str) -> bool:
        """Whether a layer's hard conceptor claims every direction that is more than rounding."""
        choice = self.aperture(name)
        share = getattr(choice, "share", 0.0)
        return self.hard and (share == 1.0 or share is None) and not isinstance(choice, Quota)

    def pull(self, name: str) -> float:
        """How strongly a layer is drawn back; 0 where it is not."""
        choice = self.aperture(name)
        return choice.pull if isinstance(choice, Auto) and not self.hard else 0.0

    def room(self, name: str) -> float:
        """How much of a layer's inputs is left to steps, whatever is claimed."""
        choice = self.aperture(name)
        return choice.room if isinstance(choice, Auto) and not self.hard else 0.0

    def rank_of(self, dim: int) -> int | None:
        """How many directions of a layer with so many inputs are protected at most."""
        if self.rank is None:
            return None
        return max(1, round(self.rank * dim)) if isinstance(self.rank, float) else self.rank

    def joint_rank(self, dim: int) -> int | None:
        """How many directions all tasks claim at most; hard conceptors give up none by default."""
        return None if self.hard and self.rank is None else self.sketch_rank(dim)

    def sketch_rank(self, dim: int) -> int | None:
        """How many directions of a layer are kept, where d x d is too much."""
        if dim <= _DENSE:
            return None
        return self.rank_of(dim) or max(1, dim // 8)


def check_apertures(value: Any) -> Aperture | dict[str, Aperture]:
    """What `Shield` takes as aperture."""
    if isinstance(value, Mapping):
        if not value:
            raise ValueError("aperture is an empty mapping; give {'*': 9.0} or a number")
        return {str(k): _check_aperture(v) for k, v in value.items()}
    return _check_aperture(value)


def _check_aperture(value: Any) -> Aperture:
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f'aperture must be "auto", a number, Quota or Energy, got {value!r}')
        return Auto()
    if isinstance(value, (Auto, Quota, Energy)):
        return value
    return float(checks.aperture(value, torch.Size(()), torch.zeros(1, dtype=torch.float64)))


def check_rank(rank: Any) -> int | float | None:
    """A number of directions, or a share of them."""
    if rank is None:
        return None
    if isinstance(rank, float):
        return checks.number(rank, "rank (a share of d)", 0.0, 1.0, open_low=True)
    return checks.whole(rank, "rank", 1)


def check_patterns(value: Any, name: str) -> list[str]:
    """Shell-style patterns of names; one alone will do."""
    patterns = [value] if isinstance(value, str) else list(value)
    if not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"{name} takes name patterns (strings), got {patterns!r}")
    return patterns


def check_names(
    model: nn.Module,
    sites: Iterable[str],
    exclude: Iterable[str],
    freeze: Iterable[str],
    aperture: Aperture | Mapping[str, Aperture],
) -> None:
    """Whether each pattern fits something: one that is misspelt would protect nothing, or all.

    Raises:
        ValueError: names the pattern and the nearest name.
    """
    modules = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    own = [name for part in (model.named_parameters(), model.named_buffers()) for name, _ in part]
    names = [*modules, *own, *sites]
    below = [f"{name}.*" for name in modules]  # also of containers that are still empty
    by_name = aperture if isinstance(aperture, Mapping) else ()
    for label, some in (("exclude", exclude), ("freeze", freeze), ("aperture", by_name)):
        for pattern in some:
            if not matches(names, [pattern]) and not matches(below, [pattern]):
                raise ValueError(
                    f"{label} has a pattern that fits no layer, parameter or buffer: {pattern!r}"
                    f"{nearest(pattern, dict.fromkeys(names))}"
                )


def one_of(value: Any, name: str, allowed: tuple[str, ...]) -> str:
    """One of some words."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}")
    return str(value)
