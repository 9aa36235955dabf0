"""Gradient projection memory (Saha, Garg & Roy 2021), and its scaled form (Saha & Roy 2023)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from conceptors.experiments.methods.projected import MatrixLayer, ProjectedLearner
from conceptors.experiments.methods.settings import Settings, setting

_ROUNDING = 1e-12  # share of the energy


@dataclass(frozen=True)
class GpmSettings(Settings):
    threshold: float = setting(0.97, "share ε of the inputs' energy that is protected, up to 1")
    input_threshold: float = setting(0.0, "threshold of the first layer, 0 for the same")
    increase: float = setting(0.0, "added to the threshold with every task")
    samples: int = setting(300, "images per task that directions are computed from, 0 for all")


class Gpm(ProjectedLearner):
    """g ← g - g M Mᵀ from the second task on, M the directions of each layer's earlier inputs.

    After a task, each layer's M gets the leading directions of the part of this task's rows that
    M does not cover, as many as make it cover ε of their energy.
    """

    name = "gpm"
    about = "gradient projection memory (Saha, Garg & Roy 2021)"
    settings_type = GpmSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        empty = torch.zeros(0, dtype=torch.float64, device=self.device)
        self.bases = {layer: empty.new_zeros(layer.dim, 0) for layer in self.layers}  # M
        self.importances = dict.fromkeys(self.layers, empty)  # λ
        self.factors: dict[MatrixLayer, tuple[Tensor, Tensor]] = {}  # M Λ and Mᵀ

    def projected(self, gradient: Tensor, layer: MatrixLayer) -> Tensor:
        scaled, transposed = self.factors[layer]
        return gradient - gradient @ scaled @ transposed

    def end_task(self, number: int) -> None:
        for layer, rows in self.drawn_rows(number).items():
            basis, strengths = extended(self.bases[layer], rows, self.share(layer, number))
            importances = self.weigh(self.importances[layer], strengths)
            self.bases[layer], self.importances[layer] = basis, importances
            scaled = (basis * importances).to(layer.weight)
            self.factors[layer] = scaled, basis.mT.to(layer.weight)

    def share(self, layer: MatrixLayer, number: int) -> float:
        """ε of a layer after a task."""
        s = self.settings
        share = (layer is self.layers[0] and s.input_threshold) or s.threshold
        return float(min(share + s.increase * number, 1.0))

    def weigh(self, old: Tensor, strengths: Tensor) -> Tensor:
        """Importances λ `[r]` of directions after a task: all of them count fully."""
        return torch.ones_like(strengths)


@dataclass(frozen=True)
class SgpSettings(GpmSettings):
    coefficient: float = setting(10.0, "α of the importances: larger is nearer to GPM")


class Sgp(Gpm):
    """g ← g - g M Λ Mᵀ: GPM with a smaller projection along less important directions.

    With σ the strength of each direction under the task just learned,
    λ = (α + 1) σ / (α σ + max σ), added to the direction's importance so far, up to 1.
    """

    name = "sgp"
    about = "scaled gradient projection (Saha & Roy 2023)"
    settings_type = SgpSettings

    def weigh(self, old: Tensor, strengths: Tensor) -> Tensor:
        alpha = self.settings.coefficient
        largest = strengths.amax().clamp_min(torch.finfo(strengths.dtype).tiny)
        new: Tensor = (alpha + 1) * strengths / (alpha * strengths + largest)
        return (new + functional.pad(old, (0, len(new) - len(old)))).clamp_max(1)


def extended(basis: Tensor, rows: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """M `[d, r]` with as many new directions as cover a share of the energy of R `[n, d]`.

    The leading right singular vectors of R̂ = R - R M Mᵀ are added until
    ‖R‖² - ‖R̂‖² + Σ σ² ≥ share ‖R‖². The second result is the strength of each direction: ‖R m‖
    of an old one m, the singular value σ of a new one.
    """
    onto = rows @ basis
    uncovered = rows - onto @ basis.mT
    total = rows.square().sum()
    covered_before = total - uncovered.square().sum()
    if len(rows) > rows.shape[1]:  # R of a QR decomposition is smaller, with the same directions
        uncovered = torch.linalg.qr(uncovered, mode="r").R
    _, strengths, directions = torch.linalg.svd(uncovered, full_matrices=False)
    energies = strengths.square()
    covered = covered_before + energies.cumsum(0) - energies  # without each
    count = int(((covered < share * total) & (energies > _ROUNDING * total)).sum())
    strengths = torch.cat([onto.square().sum(0).sqrt(), strengths[:count]])
    return torch.cat([basis, directions[:count].mT], 1), strengths
