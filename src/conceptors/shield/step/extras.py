"""What a step does besides projections: frozen parameters, and decay towards anchors."""

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
        moves_all: whether the optimizer also steps parameters without gradients.
        saved: the values of the parameters during a step; None outside a step.
        magnitudes: parameters that follow their directions, by name.
        ratios: the constant ratios of these magnitudes to their directions.
    """

    parameters: list[nn.Parameter] = field(default_factory=list)
    moves_all: bool = False
    saved: list[tuple[nn.Parameter, Tensor]] | None = None
    magnitudes: Mapping[str, Magnitude] = field(default_factory=dict)
    ratios: dict[str, Tensor] = field(default_factory=dict)

    def measure(self) -> None:
        """Compute the ratios of magnitudes to their directions, before a step."""
        self.ratios = {name: m.ratio() for name, m in self.magnitudes.items()}

    def save(self) -> None:
        """Save the parameters that a step may move."""
        self.saved = [
            (p, p.data.clone())
            for p in self.parameters
            if p.requires_grad or p.grad is not None or self.moves_all
        ]

    def restore(self) -> None:
        """Restore the saved parameters, and the ratios of magnitudes."""
        for parameter, value in self.saved or ():
            parameter.data.copy_(value)
        for name, magnitude in self.magnitudes.items():
            if name in self.ratios:
                magnitude.follow(self.ratios[name])
        self.saved = None


@dataclass
class Decay:
    """The decay W ← W - η 2 λ (W - W_before), independent of the projection (Algorithm 2).

    Attributes:
        whole: parameters and W_before of blocks that belong to one group of one optimizer.
        apart: parameters and W_before of other blocks, where decay leaves the free space and is
            projected like the step.
        rate: 2 λ.
    """

    whole: Anchored = field(default_factory=list)
    apart: Anchored = field(default_factory=list)
    rate: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.whole or self.apart)

    @exactly()
    def apply(self, anchored: Anchored, optimizer: Optimizer) -> None:
        """Decay these parameters."""
        rates = {id(p): g.get("lr", 1.0) for g in optimizer.param_groups for p in g["params"]}
        for parameter, anchor in anchored:
            share = self.rate * rates[id(parameter)]
            parameter.data.lerp_(anchor, share.to(anchor) if isinstance(share, Tensor) else share)


@dataclass
class Extras:
    """Frozen parameters and decay of one optimizer.

    Attributes:
        fastest: the largest learning rate at which plain steps do not overshoot a pull.
    """

    frozen: Frozen = field(default_factory=Frozen)
    decay: Decay = field(default_factory=Decay)
    fastest: float = math.inf

    def __bool__(self) -> bool:
        return bool(self.frozen.parameters or self.frozen.magnitudes or self.decay)


def make_extras(optimizer: Optimizer, context: Context) -> Extras:
    """Collect the frozen and decaying parameters of an optimizer."""
    protected = context.protected
    stepped = {id(p): g for g in optimizer.param_groups for p in g["params"]}
    frozen = Frozen(moves_all=isinstance(optimizer, torch.optim.LBFGS))  # along its history
    if protected.claims:
        frozen.magnitudes = protected.magnitudes
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        # momentum and weight decay also move parameters that do not require gradients
        frozen.parameters = [p for p in parameters if not p.requires_grad]
        fixed = (p for p in protected.frozen.values() if id(p) in stepped)
        frozen.parameters += [p for p in fixed if p.requires_grad]
    decay = Decay(rate=2 * context.increment_decay)
    if context.increment_decay:
        active = {id(p): p for site in protected.sites.values() for p in site.active()}
        apart = _stepped_apart(stepped, context)
        for key, p in active.items():
            if key in stepped and key in protected.anchors:
                target = decay.apart if key in apart else decay.whole
                target.append((p, protected.anchors[key]))
    return Extras(frozen, decay)


def _stepped_apart(stepped: Mapping[int, Any], context: Context) -> set[int]:
    """Return the ids of parameters in blocks that several groups or optimizers share.

    A decay of a part of a block, or of its parts at separate rates, leaves the free space.
    """
    guarded, apart = context.callbacks.optimizer_counts(), set[int]()
    for site in context.protected.sites.values():
        active = [id(p) for p in site.active() if id(p) in guarded]
        groups = [stepped.get(key) for key in active]
        if any(group is not groups[0] for group in groups):
            apart.update(active)
    return apart
