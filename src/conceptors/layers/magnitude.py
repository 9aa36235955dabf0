"""Weights that are a magnitude times a direction: W = (g / |V|) V, as in weight norm and DoRA.

V is protected like any weight as long as g / |V| stays what it is. So once a task is remembered, g
follows |V|: V learns in its free space, and nothing that was remembered is scaled by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from conceptors.layers.dora import adapters, length_of_adapted
from conceptors.layers.weight_norm import length_of_direction, normed


@dataclass(frozen=True)
class Magnitude:
    """A parameter g, the parameters that V is made of, and |V| as it is now, of g's shape."""

    parameter: nn.Parameter
    directions: tuple[nn.Parameter, ...]
    length: Callable[[], Tensor]

    @torch.no_grad()
    def ratio(self) -> Tensor:
        """g / |V|."""
        return self.parameter.data / self.length().to(self.parameter.data)

    @torch.no_grad()
    def follow(self, ratio: Tensor) -> None:
        """Make g / |V| this again."""
        self.parameter.data.copy_(ratio * self.length().to(ratio))


def magnitudes(model: nn.Module) -> Iterator[Magnitude]:
    """All of a model whose numbers may be changed."""
    for layer in model.modules():
        parts = normed(layer)
        if parts is not None:
            g, v = parts
            yield Magnitude(g, (v,), lambda layer=layer: length_of_direction(layer))  # type: ignore[misc]
        for one in adapters(layer):
            yield Magnitude(
                one.magnitude.weight,
                (one.down.weight, one.up.weight),
                lambda one=one: length_of_adapted(one),  # type: ignore[misc]
            )
