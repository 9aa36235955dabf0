"""W_before: the weights after the last task, where a pull or a decay needs them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor, nn

from conceptors.shield.blocks import WeightBlock, is_sharded


@dataclass
class Anchors:
    """Copies of weights, by the names of their parameters.

    Attributes:
        near: store them on the device of their weights, because every step needs them. Anchors
            that are needed only when a task begins are stored in main memory.
    """

    near: bool
    values: dict[str, Tensor] = field(default_factory=dict)

    def set(self, model: nn.Module, sites: Iterable[WeightBlock], *, new_only: bool) -> None:
        """Copy the current weights of these sites, of all parameters or only of new ones."""
        names = {id(p): name for name, p in model.named_parameters()}
        for parameter in (p for site in sites for p in site.parameters):
            name = names[id(parameter)]
            anchor = self.values.get(name)
            if not new_only or anchor is None or anchor.shape != parameter.shape:
                value = parameter.data.clone()
                self.values[name] = value if self.near or is_sharded(value) else value.cpu()

    def by_parameter(self, model: nn.Module) -> dict[int, Tensor]:
        """Return the anchors by the ids of the model's current parameters."""
        anchors = {}
        for name, parameter in model.named_parameters():
            if name in self.values:
                if self.near:
                    moved = self.values[name].to(parameter.device, parameter.dtype)
                    self.values[name] = moved
                anchors[id(parameter)] = self.values[name]
        return anchors
