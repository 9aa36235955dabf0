"""Sums of what parameters beside layers meet, and who takes it."""

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
    """Second moments of what scales multiply, `[g, 1, 1]`; all is claimed of constants."""

    is_constant = False

    def hold(self) -> None:
        """It was used as a constant."""
        self.is_constant, self.weight = True, max(self.weight, 1.0)

    def all_reduce(self, group: Any = None) -> None:
        flag = torch.tensor(float(self.is_constant), device=self.total.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
        super().all_reduce(group)
        self.is_constant = bool(flag)

    def correlation(self) -> Tensor:
        return torch.ones_like(self.total) if self.is_constant else super().correlation()

    def conceptor(self, aperture: float | Tensor) -> Conceptor:
        if not self.is_constant:
            return super().conceptor(aperture)
        ones = torch.ones_like(self.total, dtype=torch.float64)
        return Conceptor.from_spectrum(ones, ones[..., 0])


class BareRecorder(Recorder):
    """Takes the rows of one parameter from functions that use it, where others hook a layer."""

    _met = False  # in this batch

    def begin(self, batch: Any) -> bool:
        self._met = False
        wanted = self._first is None or self._plan.recorded
        if self._moments.is_constant or not wanted:
            self.close()
            return False
        if self._handle is None:
            self._handle = self._layer.register_forward_hook(self._called)
        return True

    @property
    def listens(self) -> bool:
        return self._handle is not None

    def scale(self, x: Tensor) -> None:
        """It was multiplied with x `[..., d]`."""
        self._met = True
        if self.listens and not self._moments.is_constant:
            self._first = self._plan.batch if self._first is None else self._first
            self._take(Call((x,), {}, None), False, self._scale())

    def hold(self) -> None:
        """It was used in some other way."""
        self._met = True
        if self.listens:
            self._moments.hold()

    def _called(self, _layer: nn.Module, _args: Any, _output: Any) -> None:
        if not self._met:  # maybe in a kernel that tells nobody
            self.hold()

    def check(self) -> None:
        """It need not be used at all, but under FSDP nobody sees whether it is."""
        used = self._first is not None or self._moments.is_constant
        if not used and any(is_sharded(p) for p in self._layer.parameters(recurse=False)):
            self._moments.hold()

    @property
    def _moments(self) -> Any:
        return next(iter(self._takers.values()))[0].moments
