"""The context of the guards of a model, which is rebuilt when anything in it changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors.algebra.conceptor import Conceptor
from conceptors.layers.magnitude import Magnitude
from conceptors.shield.blocks import WeightBlock
from conceptors.shield.step.free_space import FreeSpace, restrict


@dataclass(frozen=True)
class Claim:
    """The claimed space of one layer.

    Attributes:
        conceptor: A, a batch of g conceptors.
        rank: the largest number of claimed directions; None for all.
        least: singular values up to this count as free.
        stiffness: c `[g]` of a layer with a pull, see `FreeSpace.pull`.
        room: the share of the space that always stays free, see `Auto`.
    """

    conceptor: Conceptor
    rank: int | None = None
    least: float = 0.0
    stiffness: Tensor | None = None
    room: float = 0.0

    def free(self, columns: Tensor | None, like: Tensor) -> FreeSpace:
        """Compute the free space of these columns (None for all), on the device of a weight."""
        part = self.conceptor if columns is None else restrict(self.conceptor, columns)
        return FreeSpace(
            part.to(like.device), like.dtype, self.rank, self.least, self.stiffness, self.room
        )


@dataclass(frozen=True)
class Protected:
    """The protected parts of a model, and their state at the beginning of the task."""

    sites: Mapping[str, WeightBlock] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    frozen: Mapping[str, nn.Parameter] = field(default_factory=dict)
    magnitudes: Mapping[str, Magnitude] = field(default_factory=dict)
    anchors: Mapping[int, Tensor] = field(default_factory=dict)  # W_before, by a parameter's id
    resumed: Mapping[str, Tensor] = field(default_factory=dict)  # notes from a checkpoint
    _spaces: dict[object, tuple[FreeSpace, list[nn.Parameter]]] = field(default_factory=dict)

    def free(self, name: str, active: list[nn.Parameter]) -> FreeSpace | None:
        """Return the free space of a block's active parameters; None if all is free.

        It is computed once for all optimizers.
        """
        claim = self.claims.get(name)
        if claim is None:
            return None
        first = active[0]
        key = (name, first.dtype, first.device, *(id(p) for p in active))
        if key not in self._spaces:  # stores the parameters too, so their ids stay valid
            space = claim.free(self.sites[name].columns(active), first)
            self._spaces[key] = (space, active)
        return self._spaces[key][0]


@dataclass(frozen=True)
class GuardCallbacks:
    """Functions of the shield that guards call.

    Attributes:
        optimizer_counts: counts the guarded optimizers of each parameter, by id.
        report_passing: receives the share of the gradients that is applied, by layer.
        look_before_step: checks the weights, which other code than a guarded step has changed.
        look_again: checks whether layers were added or replaced.
        check_thread: raises RuntimeError if another thread is using the shield.
    """

    optimizer_counts: Callable[[], Counter[int]] = Counter
    report_passing: Callable[[Mapping[str, float]], None] = lambda shares: None
    look_before_step: Callable[[], None] = lambda: None
    look_again: Callable[[Optimizer], None] = lambda optimizer: None
    check_thread: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Context:
    """What is protected, and how steps are projected; `version` counts the changes."""

    version: int = -1
    protected: Protected = field(default_factory=Protected)
    increment_decay: float = 0.0
    callbacks: GuardCallbacks = field(default_factory=GuardCallbacks)
