"""W_before: the weights as the last task left them, where something is drawn back to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor, nn

from conceptors.shield.blocks import WeightBlock, is_sharded


@dataclass
class Anchors:
    """Copies of weights, by the names of their parameters.

    Attributes:
        near: keep them beside their weights, as every step needs them; those that are needed
            once, when a task begins, wait in main memory.
    """

    near: bool
    values: dict[str, Tensor] = field(default_factory=dict)

    def set(self, model: nn.Module, sites: Iterable[WeightBlock], *, new_only: bool) -> None:
        """Copy the weights of some sites as they are now; of new parameters, or of all."""
        names = {id(p): name for name, p in model.named_parameters()}
        for parameter in (p for site in sites for p in site.parameters):
            name = names[id(parameter)]
            held = self.values.get(name)
            if not new_only or held is None or held.shape != parameter.shape:
                value = parameter.data.clone()
                self.values[name] = value if self.near or is_sharded(value) else value.cpu()

    def by_parameter(self, model: nn.Module) -> dict[int, Tensor]:
        """The same by the ids of the parameters of now."""
        found = {}
        for name, parameter in model.named_parameters():
            if name in self.values:
                if self.near:
                    moved = self.values[name].to(parameter.device, parameter.dtype)
                    self.values[name] = moved
                found[id(parameter)] = self.values[name]
        return found
