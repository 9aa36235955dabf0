"""Kernel linear discriminant analysis, KLDA (Momeni, Mazumder & Liu 2025).

"Continual learning using a kernel-based method over foundation models", AAAI: discriminant
analysis of random Fourier features of a Gaussian kernel. The kernel's width is relative to the
data here, and the paper's pseudo-inverse is a small shrinkage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conceptors import RandomFeatures
from conceptors.experiments.methods.closed.slda import Slda, SldaSettings
from conceptors.experiments.methods.settings import setting


@dataclass(frozen=True)
class KldaSettings(SldaSettings):
    lift: int = setting(2000, "random Fourier features")
    spread: float = setting(0.7, "of the frequencies, the inverse of the kernel's width")


class Klda(Slda):
    name = "klda"
    about = "kernel linear discriminant analysis (Momeni et al. 2025)"
    settings_type = KldaSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        s, options = self.settings, {"shape": 0.0, "seed": self.seed}
        lift = RandomFeatures(self.width, s.lift, "fourier", spread=s.spread, **options)
        self.lift = lift.to(self.device)

    def calibrate(self, rows: Tensor) -> None:
        self.lift.calibrate(rows)

    def lifted(self, rows: Tensor) -> Tensor:
        h: Tensor = self.lift(rows)
        return h
