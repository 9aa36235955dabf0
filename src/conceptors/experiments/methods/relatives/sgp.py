"""Scaled gradient projection (Saha & Roy 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from conceptors.experiments.methods.relatives.gpm import Gpm, GpmSettings
from conceptors.experiments.methods.settings import setting


@dataclass(frozen=True)
class SgpSettings(GpmSettings):
    coefficient: float = setting(10.0, "α of the importances: larger is nearer to GPM")


class Sgp(Gpm):
    """g ← g - g M Λ Mᵀ: GPM with a smaller projection along less important directions.

    With σ the strength of each direction under the task just learned,
    λ = (α + 1) σ / (α σ + max σ), added to the direction's importance so far, up to 1. As in the
    authors' code, max σ is over old and new directions together.
    """

    name = "sgp"
    about = "scaled gradient projection (Saha & Roy 2023)"
    settings_type = SgpSettings

    def weigh(self, before: Tensor, strengths: Tensor) -> Tensor:
        alpha = self.settings.coefficient
        largest = strengths.amax().clamp_min(torch.finfo(strengths.dtype).tiny)
        new = (alpha + 1) * strengths / (alpha * strengths + largest)
        return (before + new).clamp_max(1)

    def stored_numbers(self) -> int:
        return super().stored_numbers() + sum(len(each) for each in self.importances.values())
