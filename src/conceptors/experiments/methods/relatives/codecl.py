"""CODE-CL: conceptor-based gradient projection (Apolinario, Choudhary & Roy 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conceptors import Conceptor
from conceptors.experiments.methods.relatives.layers import MatrixLayer
from conceptors.experiments.methods.relatives.own_parts import (
    OwnPart,
    OwnPartsLearner,
    OwnPartsSettings,
)
from conceptors.experiments.methods.settings import setting

_TRIES = 200  # of apertures; the last is 1.1²⁰⁰ = 2 · 10⁸ times the first


@dataclass(frozen=True)
class CodeClSettings(OwnPartsSettings):
    aperture: float = setting(6.0, "of all conceptors; its authors: 6 CIFAR, 8 ImageNet, 4 mixed")
    kept: float = setting(0.95, "grow the aperture until ‖Cx‖ is this share of ‖x‖; below 1")
    least: float = setting(0.2, "singular values below this become 0")
    samples: int = setting(125, "images per task for the conceptors, 0 for all")
    free: int = setting(80, "directions freed in a layer where tasks overlap; 0 for none")
    overlap: float = setting(
        0.5, "free them where the quota of (old AND new) exceeds this share of the old quota"
    )


class CodeCl(OwnPartsLearner):
    """Gradients are projected by NOT A, A the OR of all tasks' conceptors.

    Where the new task's conceptor C, taken before learning, overlaps with A, the leading directions
    U of A AND C are freed for this task alone: W + (W U) (S - I) Uᵀ with a learned S. Overlap is,
    as in the authors' code, the quota of A AND C as a share of A's. Layers with at most `free`
    inputs have no freed directions.
    """

    name = "codecl"
    about = "CODE-CL: conceptor-based projection, overlaps freed (Apolinario 2024)"
    settings_type = CodeClSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.claimed: dict[str, Conceptor] = {}  # A of each layer

    def start_task(self, number: int) -> None:
        self.parts.append([])  # the new data is seen with the shared weights
        if number == 0:
            return
        s, rows = self.settings, self.drawn_rows(number)
        for layer in self.layers:
            old = self.claimed[layer.name]
            shared = old & pruned(wide_enough(rows[layer.name], s.aperture, s.kept), s.least)
            values, vectors = descending(shared)
            U = vectors[:, : s.free][:, values[: s.free] > 0]
            if layer.dim > s.free and U.shape[1] and shared.quota > s.overlap * old.quota:
                self.parts[number].append(OwnPart(layer, [U]))
        self.matrices = {
            layer.name: self.claimed[layer.name].matrix().to(layer.weight) for layer in self.layers
        }

    def projected(self, gradient: Tensor, layer: MatrixLayer) -> Tensor:
        return gradient - gradient @ self.matrices[layer.name]

    def end_task(self, number: int) -> None:
        s = self.settings
        for name, rows in self.drawn_rows(number).items():
            new = wide_enough(rows, s.aperture, s.kept)
            both = self.claimed[name] | new if name in self.claimed else new
            self.claimed[name] = pruned(both, s.least)

    def stored_numbers(self) -> int:
        """A as directions and values, or as a matrix if that is less; each task's U and S."""
        total = 0
        for claimed in self.claimed.values():
            rank = int((claimed.singular_values > 0).sum())
            total += min(rank * (claimed.dim + 1), claimed.dim**2)
        parts = [part for task in self.parts for part in task]
        return total + sum(t.numel() for part in parts for t in (*part.bases, *part.mixes))


def wide_enough(rows: Tensor, aperture: float, kept: float) -> Conceptor:
    """The conceptor of rows x `[n, d]`, its aperture grown until Σ‖Cx‖ ≥ kept Σ‖x‖."""
    conceptor = Conceptor.from_states(rows, aperture)
    enough = kept * rows.norm(dim=1).sum()
    for _ in range(_TRIES):
        if (rows @ conceptor.matrix()).norm(dim=1).sum() >= enough:
            break
        conceptor = conceptor.adapt(1.1)
    return conceptor


def pruned(conceptor: Conceptor, least: float) -> Conceptor:
    """The conceptor with singular values below `least` set to 0."""
    values, vectors = descending(conceptor)
    return Conceptor.from_spectrum(vectors, values.where(values >= least, 0.0))


def descending(conceptor: Conceptor) -> tuple[Tensor, Tensor]:
    """Singular values `[r]`, the largest first, and their directions `[d, r]`."""
    vectors, values, _ = conceptor.spectrum
    values, order = values.sort(descending=True, stable=True)
    return values, vectors[:, order]
