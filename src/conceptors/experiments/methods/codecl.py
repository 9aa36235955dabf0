"""CODE-CL: conceptor-based gradient projection (Apolinario, Choudhary & Roy 2024)."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from conceptors import Conceptor
from conceptors.experiments.methods.projected import MatrixLayer, RemixLearner
from conceptors.experiments.methods.settings import Settings, setting

_LEAST = 0.2  # singular values below this become 0
_TRIES = 200  # of apertures; the last is 1.1²⁰⁰ = 2 · 10⁸ times the first


@dataclass(frozen=True)
class CodeClSettings(Settings):
    aperture: float = setting(6.0, "of all conceptors; its authors: 6 CIFAR, 8 ImageNet, 4 mixed")
    kept: float = setting(0.95, "grow the aperture until ‖Cx‖ is this share of ‖x‖; below 1")
    samples: int = setting(125, "images per task for the conceptors, 0 for all")
    free: int = setting(80, "directions freed in a layer where tasks overlap; 0 for none")
    overlap: float = setting(
        0.5, "free them where the quota of (old AND new) exceeds this share of the old quota"
    )


class CodeCl(RemixLearner):
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
        self.claimed: dict[MatrixLayer, Conceptor] = {}  # A
        self.claimed_matrices: dict[MatrixLayer, Tensor] = {}

    def start_task(self, number: int) -> None:
        super().start_task(number)
        if number == 0:
            return
        s = self.settings
        for layer, rows in self.drawn_rows(number).items():  # with the shared weights
            old = self.claimed[layer]
            shared = old & pruned(wide_enough(rows, s.aperture, s.kept))
            values, vectors = descending(shared)
            U = vectors[:, : s.free][:, values[: s.free] > 0]
            if layer.dim > s.free and U.shape[1] and shared.quota > s.overlap * old.quota:
                self.add_remix(layer, U)

    def projected(self, gradient: Tensor, layer: MatrixLayer) -> Tensor:
        return gradient - gradient @ self.claimed_matrices[layer]

    def end_task(self, number: int) -> None:
        s = self.settings
        for layer, rows in self.drawn_rows(number).items():
            new = wide_enough(rows, s.aperture, s.kept)
            self.claimed[layer] = claimed = pruned(self.claimed[layer] | new if number else new)
            self.claimed_matrices[layer] = claimed.matrix().to(layer.weight)


def wide_enough(rows: Tensor, aperture: float, kept: float) -> Conceptor:
    """The conceptor of rows x `[n, d]`, its aperture grown until Σ‖Cx‖ ≥ kept Σ‖x‖."""
    conceptor = Conceptor.from_states(rows, aperture)
    enough = kept * rows.norm(dim=1).sum()
    for _ in range(_TRIES):
        if (rows @ conceptor.matrix()).norm(dim=1).sum() >= enough:
            break
        conceptor = conceptor.adapt(1.1)
    return conceptor


def pruned(conceptor: Conceptor) -> Conceptor:
    """The conceptor with small singular values set to 0."""
    values, vectors = descending(conceptor)
    return Conceptor.from_spectrum(vectors, values.where(values >= _LEAST, 0.0))


def descending(conceptor: Conceptor) -> tuple[Tensor, Tensor]:
    """Singular values `[r]`, the largest first, and their directions `[d, r]`."""
    vectors, values, _ = conceptor.spectrum
    values, order = values.sort(descending=True, stable=True)
    return values, vectors[:, order]
