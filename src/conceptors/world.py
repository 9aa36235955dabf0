"""What the guards of a shield's optimizers share: claims, projectors and hooks on layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from conceptors import inputs
from conceptors.conceptor import Conceptor
from conceptors.projection import Projector, restrict
from conceptors.sites import Site


@dataclass
class World:
    """What a guard asks the shield for: it may change between steps."""

    version: int  # counts all changes
    claims: int  # counts changes of what is claimed
    clean: int  # an optimizer's history is known to be made under these claims
    sites: Mapping[str, Site]
    claimed: Mapping[str, Conceptor]
    frozen: Mapping[str, nn.Parameter]
    anchors: Mapping[int, Tensor]
    increment_decay: float
    rank: Callable[[str, int], int | None]
    held: Callable[[], Counter[int]]  # by how many guarded optimizers, by a parameter's id
    resumed: dict[str, Any]  # from a checkpoint made during a task: see `Guard.progress`
    # made when first needed; with the parameters, so that their ids stay theirs
    projectors: dict[object, tuple[Projector, list[nn.Parameter]]] = field(default_factory=dict)
    inlets: dict[str, inputs.Inlet] = field(default_factory=dict)

    def projector(self, name: str, active: list[nn.Parameter]) -> Projector | None:
        """What keeps changes of a site's parameters in the free space; None if all is free."""
        claimed = self.claimed.get(name)
        if claimed is None:
            return None
        dtype, device = active[0].dtype, active[0].device
        key = (name, dtype, device, *(id(p) for p in active))
        if key not in self.projectors:
            columns = self.sites[name].columns(active)
            part = claimed if columns is None else restrict(claimed, columns)
            limit = self.rank(name, part.dim)
            self.projectors[key] = (Projector(part.to(device), dtype, limit), active)
        return self.projectors[key][0]

    def inlet(self, name: str, projector: Projector) -> inputs.Inlet:
        """The hook that projects what enters a site, one for all optimizers."""
        held = self.inlets.get(name)
        if held is not None and held.serves(self.sites[name], projector):
            return held
        if held is not None:
            held.close()
        self.inlets[name] = inputs.Inlet(self.sites[name], projector)
        return self.inlets[name]

    def close(self, used: Container[inputs.Inlet] = ()) -> None:
        """Take all hooks off the model's layers, but those that are used."""
        for name, inlet in list(self.inlets.items()):
            if inlet not in used:
                inlet.close()
                del self.inlets[name]
