"""What a step does beside projecting: some weights stay where they are, some are drawn back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from conceptors._internal.precision import exactly
from conceptors.layers.magnitude import Magnitude
from conceptors.shield.step.context import Context

Anchored = list[tuple[nn.Parameter, Tensor]]


@dataclass
class Frozen:
    """Parameters that a step must not move.

    Attributes:
        moves_all: the optimizer also steps what has no gradient.
        kept: their values during a step; None outside.
        magnitudes: parameters that follow others, by name.
        ratios: to what these are kept.
    """

    parameters: list[nn.Parameter] = field(default_factory=list)
    moves_all: bool = False
    kept: list[tuple[nn.Parameter, Tensor]] | None = None
    magnitudes: Mapping[str, Magnitude] = field(default_factory=dict)
    ratios: dict[str, Tensor] = field(default_factory=dict)

    def measure(self) -> None:
        """Know how magnitudes stand to their directions, before anything moves these."""
        self.ratios = {name: m.ratio() for name, m in self.magnitudes.items()}

    def keep(self) -> None:
        """Know them before a step, as far as that may move them."""
        self.kept = [
            (p, p.data.clone())
            for p in self.parameters
            if p.requires_grad or p.grad is not None or self.moves_all
        ]

    def put_back(self) -> None:
        """As they were before the step."""
        for parameter, value in self.kept or ():
            parameter.data.copy_(value)
        for name, magnitude in self.magnitudes.items():
            if name in self.ratios:
                magnitude.follow(self.ratios[name])
        self.kept = None


@dataclass
class Decay:
    """W ← W - η 2 λ (W - W_previous), apart from the projection (Algorithm 2).

    Attributes:
        whole: parameters and W_previous, of blocks that one group of the optimizer has as a whole.
        apart: the same of other blocks, where it leaves the free space: to be projected like the
            step.
        rate: 2 λ.
    """

    whole: Anchored = field(default_factory=list)
    apart: Anchored = field(default_factory=list)
    rate: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.whole or self.apart)

    @exactly()
    def apply(self, some: Anchored, optimizer: Optimizer) -> None:
        rates = {id(p): g.get("lr", 1.0) for g in optimizer.param_groups for p in g["params"]}
        for parameter, anchor in some:
            share = self.rate * rates[id(parameter)]
            parameter.data.lerp_(anchor, share.to(anchor) if isinstance(share, Tensor) else share)


@dataclass
class Rest:
    """All of this for one optimizer.

    Attributes:
        fastest: learning rate up to which plain steps do not overshoot a pull.
    """

    frozen: Frozen = field(default_factory=Frozen)
    decay: Decay = field(default_factory=Decay)
    fastest: float = math.inf

    def __bool__(self) -> bool:
        return bool(self.frozen.parameters or self.frozen.magnitudes or self.decay)


def make_rest(optimizer: Optimizer, context: Context) -> Rest:
    """What stays and what is drawn back of an optimizer's parameters."""
    protected = context.protected
    stepped = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    frozen = Frozen(moves_all=isinstance(optimizer, torch.optim.LBFGS))  # along its history
    if protected.claims:
        frozen.magnitudes = protected.magnitudes
        held = [p for g in optimizer.param_groups for p in g["params"]]
        # momentum and weight decay move what does not learn too, while it has a gradient of zeros
        frozen.parameters = [p for p in held if not p.requires_grad]
        named = (p for p in protected.frozen.values() if id(p) in stepped)
        frozen.parameters += [p for p in named if p.requires_grad]
    decay = Decay(rate=2 * context.increment_decay)
    if context.increment_decay:
        some = {id(p): p for site in protected.sites.values() for p in site.active()}
        apart = _stepped_apart(stepped, context)
        for number, p in some.items():
            if number in stepped and number in protected.anchors:
                row = decay.apart if number in apart else decay.whole
                row.append((p, protected.anchors[number]))
    return Rest(frozen, decay)


def _stepped_apart(stepped: Mapping[int, Any], context: Context) -> set[int]:
    """Ids of parameters in blocks that several groups or optimizers share.

    What moves a part of a block, or parts of it at rates of their own, leaves the free space.
    """
    held, found = context.keeper.held(), set[int]()
    for site in context.protected.sites.values():
        active = [id(p) for p in site.active() if id(p) in held]
        groups = [stepped.get(number) for number in active]
        if any(group is not groups[0] for group in groups):
            found.update(active)
    return found
