"""Scaled gradient projection (Saha & Roy 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from conceptors.experiments.methods.relatives.gpm import Gpm, GpmSettings
from conceptors.experiments.methods.relatives.subspace import Subspace
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class SgpSettings(GpmSettings):
    coefficient: float = setting(10.0, "α of the importances: larger is nearer to GPM", each=True)


class Sgp(Gpm):
    """g ← g - g M Λ Mᵀ: GPM that leaves less important directions some of their gradient.

    With σ the strength of each direction under the task just learned,
    λ = (α + 1) σ / (α σ + max σ), added to what the direction had from earlier tasks, up to 1.

    Where the paper leaves room we do as its code: the strength of an old direction m is
    σ = ‖R m‖ (the code finds the same by way of another decomposition), and max σ is over old and
    new directions together. As in GPM here, the first task keeps one direction more than the code.
    """

    name: ClassVar[str] = "sgp"
    about: ClassVar[str] = "scaled gradient projection (Saha & Roy 2023)"
    settings_type: ClassVar[type[Settings]] = SgpSettings

    def weigh(self, so_far: Tensor, strengths: Tensor) -> Tensor:
        alpha = self.each("coefficient", len(strengths))[:, None].to(strengths)
        largest = strengths.amax(1, keepdim=True).clamp_min(torch.finfo(strengths.dtype).tiny)
        new = (alpha + 1) * strengths / (alpha * strengths + largest)
        return (so_far + new).clamp_max(1)

    def numbers_a_direction(self, subspace: Subspace) -> int:
        return super().numbers_a_direction(subspace) + 1  # its importance
