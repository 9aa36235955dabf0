"""What the timed steps did to the remembered task."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from conceptors import Shield
from conceptors.bench.floor import limit_of

_FULL = 0.999  # singular values above count as fully claimed


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


class Leak:
    """Watches how far the weights of a shielded model move in fully claimed directions."""

    def __init__(self, shield: Shield) -> None:
        self._shield = shield
        self._before = {name: matrix.clone() for name, matrix in self._matrices().items()}

    @torch.no_grad()
    def largest(self) -> float | None:
        """max over layers of ‖ΔW U‖ / ‖ΔW‖, U the vectors of singular values above 0.999.

        None where no direction is fully claimed or nothing moved.
        """
        found: list[float] = []
        now = self._matrices()
        for name, conceptor in self._shield.conceptors().items():
            if name not in now:
                continue
            vectors, values, _ = conceptor.to(now[name].device).spectrum
            kept = min(limit_of(self._shield, conceptor.dim), values.shape[-1])
            order = values[0].argsort(descending=True)[:kept]
            top = vectors[0][:, order[values[0][order] > _FULL]].double()
            moved = now[name].double() - self._before[name].double()
            if top.shape[1] and bool(moved.any()):
                found.append(float((moved @ top).norm() / moved.norm()))
        return max(found, default=None)

    def _matrices(self) -> dict[str, Tensor]:
        """[W | b] of every Linear layer and every convolution of one group."""
        found = {}
        for path, layer in self._shield.model.named_modules():
            if isinstance(layer, nn.Linear) or (isinstance(layer, nn.Conv2d) and layer.groups == 1):
                parts = [layer.weight.detach().flatten(1)]
                if layer.bias is not None:
                    parts.append(layer.bias.detach()[:, None])
                found[path or type(layer).__name__] = torch.cat(parts, 1)
        return found
