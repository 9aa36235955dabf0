"""Second moments and recorders of bare parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from conceptors.algebra.conceptor import Conceptor
from conceptors.layers import Call
from conceptors.shield.blocks import is_sharded
from conceptors.shield.remember.moments import Moments
from conceptors.shield.remember.recorder import Recorder


class BareMoments(Moments):
    """Second moments `[g, 1, 1]` of what a scale multiplies; a constant is claimed as a whole."""

    is_constant = False

    def mark_constant(self) -> None:
        """Record that the parameter is used as a constant."""
        self.is_constant, self.weight = True, max(self.weight, 1.0)

    def all_reduce(self) -> None:
        flag = torch.tensor(float(self.is_constant), device=self.total.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        super().all_reduce()
        self.is_constant = bool(flag)

    def correlation(self) -> Tensor:
        return torch.ones_like(self.total) if self.is_constant else super().correlation()

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        if not self.is_constant:
            return super().conceptor(aperture)
        ones = torch.ones_like(self.total, dtype=torch.float64)
        return Conceptor.from_spectrum(ones, ones[..., 0])


class BareRecorder(Recorder):
    """Record the rows of one bare parameter at the functions that use it."""

    _used = False  # in this batch

    def begin(self, batch: Any) -> bool:
        self._used = False
        is_recorded = self._first is None or self._plan.recorded
        if self._moments.is_constant or not is_recorded:
            self.close()
            return False
        if self._handle is None:
            self._handle = self._layer.register_forward_hook(self._called)
        return True

    @property
    def listens(self) -> bool:
        return self._handle is not None

    def scale(self, x: Tensor) -> None:
        """Record a product with x `[..., d]`."""
        self._used = True
        if self.listens and not self._moments.is_constant:
            self._first = self._plan.batch if self._first is None else self._first
            self._add_rows(Call((x,), {}, None), False, self._scale())

    def mark_constant(self) -> None:
        """Record any other use."""
        self._used = True
        if self.listens:
            self._moments.mark_constant()

    def _called(self, _layer: nn.Module, _args: Any, _output: Any) -> None:
        if not self._used:  # it may be used in a kernel that cannot be observed
            self.mark_constant()

    def check(self) -> None:
        """Treat an unobserved parameter as constant under FSDP, where uses are hidden."""
        is_used = self._first is not None or self._moments.is_constant
        if not is_used and any(is_sharded(p) for p in self._layer.parameters(recurse=False)):
            self._moments.mark_constant()

    @property
    def _moments(self) -> Any:
        return next(iter(self._takers.values()))[0].moments
