"""What steps do to a remembered task: with the shield, without, and with a hard one."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from conceptors import Shield
from conceptors.bench.floor import limit_of
from conceptors.shield.blocks import scan


class Protection(NamedTuple):
    """Relative change of the outputs on remembered data, shielded and plain, and the leak.

    The leak is what rounding lets through: the movement of weights along directions that a hard
    shield claims, as a share of plain training's movement along them, the largest of all layers.
    """

    drift: float
    drift_plain: float
    leak: float | None


@torch.no_grad()
def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """What a model says in evaluation, computed in float64 so that no rounding counts as drift."""
    exact = copy.deepcopy(model).eval().double()
    found: Tensor = exact(x.double() if x.is_floating_point() else x)
    return found


def drift(before: Tensor, after: Tensor) -> float:
    """‖f(x) - f₀(x)‖ / ‖f₀(x)‖.

    >>> drift(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 6.5]))
    0.5
    """
    return float((after - before).norm() / before.norm())


@torch.no_grad()
def leak(hard: Shield, before: nn.Module, plain: nn.Module) -> float | None:
    """max over layers of ‖ΔW U‖ / ‖ΔW_plain U‖, U the directions that a hard shield claims.

    None where nothing is claimed or nothing moved.
    """
    start, ours, theirs = matrices(before), matrices(hard.model), matrices(plain)
    found: list[float] = []
    for name, conceptor in hard.conceptors().items():
        if name not in start:
            continue
        vectors, values, _ = conceptor.to(start[name].device).spectrum
        kept = min(limit_of(hard, conceptor.dim), int((values[0] > 0.5).sum()))
        top = vectors[0][:, values[0].argsort(descending=True)[:kept]]
        moved = ((theirs[name] - start[name]) @ top).norm()
        if kept and moved > 0:
            found.append(float(((ours[name] - start[name]) @ top).norm() / moved))
    return max(found, default=None)


def matrices(model: nn.Module) -> dict[str, Tensor]:
    """[W | b] in float64 of every layer that is one matrix."""
    found = {}
    for name, site in scan(model, exclude=(), freeze=()).sites.items():
        groups = site.matrix(site.parameters)
        if len(groups) == 1:
            found[name] = groups[0].detach().double()
    return found
