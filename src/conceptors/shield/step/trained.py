"""Which parameters learn, so that what `remember` did not reach can be told from what rests."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from conceptors.shield.shards import local
from conceptors.shield.step.passing import is_capturing


class Trained:
    """Ids of parameters that had gradients other than 0; looks at steps 1, 2, 4, 8, …"""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._steps = 0

    def is_due(self) -> bool:
        """Whether to look at this step; counts it."""
        self._steps += 1
        return self._steps & (self._steps - 1) == 0 and not is_capturing()

    def see(self, parameters: Iterable[nn.Parameter]) -> None:
        """Look at the gradients of a step."""
        unknown = [p for p in parameters if p.grad is not None and id(p) not in self.ids]
        by_device: dict[torch.device, list[nn.Parameter]] = {}
        for parameter in unknown:
            by_device.setdefault(parameter.device, []).append(parameter)
        for together in by_device.values():  # one wait a device
            found = torch.stack([_is_any(p.grad) for p in together]).tolist()
            self.ids |= {id(p) for p, learns in zip(together, found) if learns}


def _is_any(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    own = local(gradient)
    return (own._values() if own.is_sparse else own).any()
