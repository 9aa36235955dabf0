"""What the guards of a shield's optimizers are told: rebuilt when anything of it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors.algebra.conceptor import Conceptor
from conceptors.layers.magnitude import Magnitude
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.step.free_space import FreeSpace, restrict


@dataclass(frozen=True)
class Claim:
    """What a shield holds of one layer.

    Attributes:
        conceptor: A, `[g]` of them.
        rank: how many directions are kept at most, None for all.
        least: singular values up to this count as free.
        stiffness: c `[g]` of a layer that is pulled back, see `FreeSpace.pull`.
        room: what is left to steps at least, see `Auto`.
    """

    conceptor: Conceptor
    rank: int | None = None
    least: float = 0.0
    stiffness: Tensor | None = None
    room: float = 0.0

    def free(self, columns: Tensor | None, like: Tensor) -> FreeSpace:
        """The free space of some columns (None for all), on the device of a weight."""
        part = self.conceptor if columns is None else restrict(self.conceptor, columns)
        return FreeSpace(
            part.to(like.device), like.dtype, self.rank, self.least, self.stiffness, self.room
        )


@dataclass(frozen=True)
class Protected:
    """What of a model is protected, and how it was when the task began."""

    sites: Mapping[str, WeightBlock] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    frozen: Mapping[str, nn.Parameter] = field(default_factory=dict)
    magnitudes: Mapping[str, Magnitude] = field(default_factory=dict)
    anchors: Mapping[int, Tensor] = field(default_factory=dict)  # W_before, by a parameter's id
    resumed: Mapping[str, Tensor] = field(default_factory=dict)  # notes from a checkpoint
    _spaces: dict[object, tuple[FreeSpace, list[nn.Parameter]]] = field(default_factory=dict)

    def free(self, name: str, active: list[nn.Parameter]) -> FreeSpace | None:
        """The free space of a site's active parameters; None if all is free.

        Made once for all optimizers.
        """
        claim = self.claims.get(name)
        if claim is None:
            return None
        first = active[0]
        key = (name, first.dtype, first.device, *(id(p) for p in active))
        if key not in self._spaces:  # with the parameters, so that their ids stay theirs
            found = claim.free(self.sites[name].columns(active), first)
            self._spaces[key] = (found, active)
        return self._spaces[key][0]


class Keeper:
    """Whom guards ask and tell; this one knows nothing."""

    def held(self) -> Counter[int]:
        """Ids of parameters, and by how many optimizers they are stepped."""
        return Counter()

    def warn(self, shares: Mapping[str, float]) -> None:
        """What passes of a task's steps, layer by layer."""

    def look_before_step(self) -> None:
        """Something else than a guarded step has changed weights."""

    def look_again(self, optimizer: Optimizer) -> None:
        """A good time to see whether layers were added or replaced."""

    def check_thread(self) -> None:
        """Whether the shield is free for a step."""


@dataclass(frozen=True)
class Context:
    """What is protected, and how steps are to be made; `version` counts the changes."""

    version: int = -1
    protected: Protected = field(default_factory=Protected)
    increment_decay: float = 0.0
    keeper: Keeper = field(default_factory=Keeper)
