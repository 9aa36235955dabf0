"""The interface of strategies, which keep a block's steps in the free space."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor


class Strategy(Protocol):
    """The work of one block around a step: `note`, `project` (after each closure), `correct`.

    It reads and writes only fixed memory, so a GPU can replay a recording.
    """

    noted: Tensor

    @property
    def pull(self) -> object:
        """The pull of the weights; None without one."""

    def note(self) -> None:
        """Note what `correct` needs to know about the weights before a step."""

    def project(self) -> None:
        """Replace the block's copy of the gradients G by G F^½ plus the pull."""

    def correct(self) -> None:
        """Replace W_before + ΔW by W_before + ΔW F^½, and note it for the next step."""

    def passing(self, once: bool) -> Tensor:
        """Compute <G, G F> and <G, G> `[2]` of the gradients before their projection."""

    def moved(self, once: bool) -> Tensor:
        """Compute <D, D A> and <W, W A> `[2]` for the change D of W since it was noted."""


class Way(NamedTuple):
    """How the steps of a block are projected.

    Attributes:
        make: creates the strategy.
        once: whether gradients or steps are multiplied by F, instead of both by F^½.
        projects: whether gradients are projected.
        corrects: whether steps are projected.
        stiffest: the largest stiffness of a pull, so plain steps do not overshoot.
        about: a description for `Shield.explain`.
    """

    make: Callable[..., Strategy]
    once: bool = False
    projects: bool = True
    corrects: bool = True
    stiffest: float = math.inf
    about: str = "gradients and steps projected"


class Pull(NamedTuple):
    """A spring that pulls weights towards W_before along claimed directions.

    Attributes:
        weight: the strength by direction, see `FreeSpace.pull`.
        origin: the note of W_before.
        scale: the factor `[]` of a gradient scaler.
    """

    weight: Tensor
    origin: Tensor
    scale: Tensor

    def of(self, noted: Tensor) -> Tensor:
        """Compute the pull of the noted weights."""
        return (noted - self.origin) * (self.weight * self.scale)


def claimed(gain: Tensor, once: bool) -> Tensor:
    """Compute s from what F^½ (with `once`, F) removes."""
    return gain if once else gain * (2 - gain)  # 1 - (1 - gain)²
