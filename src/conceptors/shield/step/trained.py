"""Record which parameters are trained, to detect those that `remember` does not reach."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from conceptors.shield.distributed import local
from conceptors.shield.step.passing import is_capturing


class Trained:
    """The ids of parameters with nonzero gradients at steps 1, 2, 4, 8, …"""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._steps = 0

    def is_due(self) -> bool:
        """Count a step, and return whether to record it."""
        self._steps += 1
        return self._steps & (self._steps - 1) == 0 and not is_capturing()

    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add the parameters with nonzero gradients."""
        unknown = [p for p in parameters if p.grad is not None and id(p) not in self.ids]
        by_device: dict[torch.device, list[nn.Parameter]] = {}
        for parameter in unknown:
            by_device.setdefault(parameter.device, []).append(parameter)
        for on_device in by_device.values():  # wait once per device
            learns = torch.stack([_is_nonzero(p.grad) for p in on_device]).tolist()
            self.ids |= {id(p) for p, is_trained in zip(on_device, learns) if is_trained}


def _is_nonzero(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    part = local(gradient)
    return (part._values() if part.is_sparse else part).any()
