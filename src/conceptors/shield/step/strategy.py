"""What every way of keeping a block's steps in the free space has to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor


class Strategy(Protocol):
    """One block around a step: `note`, `project` (or `project` after each closure), `correct`.

    Nothing but fixed memory is read and written, so that a GPU can replay a recording.
    """

    noted: Tensor

    @property
    def pull(self) -> object:
        """What draws the weights back, None if nothing does."""

    def note(self) -> None:
        """Keep what must be known of the weights before a step."""

    def project(self) -> None:
        """Put G F^½, and the pull, in place of the block's own copy of the gradients G."""

    def correct(self) -> None:
        """Put W_before + ΔW F^½ in place of W_before + ΔW, and note it for the next step."""

    def passing(self, once: bool) -> Tensor:
        """`[2]`: <G, G F> and <G, G> of the gradients before they are projected."""

    def moved(self, once: bool) -> Tensor:
        """`[2]`: <D, D A> of what was added to W since it was noted, and <W, W A>."""


class Way(NamedTuple):
    """How a block is treated.

    Attributes:
        make: makes the strategy.
        once: gradients or steps are multiplied by F, not both by F^½.
        projects: gradients are.
        corrects: steps are.
        stiffest: a layer is pulled back no stiffer than this, or plain steps would overshoot.
        about: in words.
    """

    make: Callable[..., Strategy]
    once: bool = False
    projects: bool = True
    corrects: bool = True
    stiffest: float = math.inf
    about: str = "gradients and steps projected"


class Pull(NamedTuple):
    """A spring that draws weights back to W_before along claimed directions.

    Attributes:
        weight: how strongly, direction by direction: `FreeSpace.pull`.
        origin: what `note` keeps of W_before.
        scale: `[]`, of a gradient scaler, by which the gradients are too large.
    """

    weight: Tensor
    origin: Tensor
    scale: Tensor

    def of(self, noted: Tensor) -> Tensor:
        """The pull for weights as noted now."""
        return (noted - self.origin) * (self.weight * self.scale)


def claimed(gain: Tensor, once: bool) -> Tensor:
    """s, from what F^½ (or with `once` F) takes off."""
    return gain if once else gain * (2 - gain)  # 1 - (1 - gain)²
