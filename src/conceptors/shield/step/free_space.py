"""The free space of one weight block, F = I - A, as a step needs it.

A step runs in the coordinates V of W = W_before + V F^½: the optimizer receives G F^½, and its step
is multiplied by F^½. Whatever an optimizer does with its gradients, a soft conceptor is applied
once in total, and plain SGD computes W - η G F, which is Algorithm 2.

With A = U diag(s) Uᵀ and r claimed directions, M F^½ = M - M U diag(1 - √(1 - s)) Uᵀ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conceptors.algebra import logic
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.aperture import slack
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.forms import SpectrumForm


class FreeSpace:
    """F = I - A of g groups, A = U diag(s) Uᵀ with r directions.

    Attributes:
        dim: d.
        vectors: U `[g, d, r]`.
        values: s `[g, r]`, in [0, 1].
        stiffness: c `[g]` of a layer with a pull, see `pull`.

    With `room`, all odds are scaled down until the mean of s over d is at most 1 - room.
    """

    def __init__(
        self,
        claimed: Conceptor,
        dtype: torch.dtype,
        rank: int | None = None,
        least: float = 0.0,
        stiffness: Tensor | None = None,
        room: float = 0.0,
    ) -> None:
        """Directions beyond the `rank` strongest, or with values up to `least`, count as free."""
        self.dim = claimed.dim
        dtype = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        least = max(least, torch.finfo(dtype).eps)  # smaller values vanish in rounding
        if rank is not None and rank < claimed.dim:
            claimed = claimed.top_k(rank)
        if claimed.spectrum[2]:  # all other directions are claimed: list them
            complete = spectra.complete(claimed.form.spectrum())
            claimed = Conceptor.from_form(SpectrumForm(complete, claimed.dtype))
        vectors, values, _ = claimed.spectrum
        needed = int((values > least).sum(-1).max()) if values.numel() else 0
        if needed < values.shape[-1]:
            values, order = values.topk(needed, -1)
            vectors = vectors.take_along_dim(order.unsqueeze(-2), -1)
        values = torch.where(values > least, values, 0.0)
        self._slack = values.new_ones(len(values)).to(dtype)  # the factor of the odds `[g]`
        if room and values.numel():
            by = slack(values, self.dim, room).unsqueeze(-1)
            values = torch.where(by < 1, by * values / (1 - values + by * values), values)
            self._slack = by.squeeze(-1).to(dtype)
        self.vectors, self.values = vectors.to(dtype).contiguous(), values.to(dtype)
        self.stiffness = None if stiffness is None else stiffness.to(values.device, dtype)

    def claimed(self) -> Tensor:
        """Compute A `[g, d, d]`."""
        return self.matrix(self.gain(once=True))

    @property
    def is_thin(self) -> bool:
        """Whether products with U cost less than products with A."""
        return 2 * self.rank < self.dim

    @property
    def is_all(self) -> bool:
        """Whether nothing is claimed."""
        return not self.rank

    @property
    def rank(self) -> int:
        return self.values.shape[-1]

    @property
    def hard(self) -> bool:
        return bool(((self.values == 0) | (self.values == 1)).all())

    def gain(self, once: bool = False) -> Tensor:
        """Return what F^½ (with `once`, F) removes along each direction, `[g, 1, r]`."""
        values = self.values.unsqueeze(-2)
        return values if once else 1 - (1 - values).sqrt()

    def pull(self, once: bool = False, stiffest: float = math.inf) -> Tensor | None:
        """Return `[g, 1, r]`; times (W - W_before) U, it is the pull that is added along U.

        The pull is the gradient of c/2 tr ΔW Q ΔWᵀ, times F^½: c q √(1 - s) with odds
        q = s / (1 - s). Weights do not move along hard directions, so these have no pull.
        `stiffest` bounds c. `room` changes only steps; the pull is that of A as claimed.
        """
        c = self.bounded_stiffness(stiffest)
        if c is None:
            return None
        free = (1 - self.values).unsqueeze(-2)
        weight = self.values.unsqueeze(-2) * c[:, None, None]
        return weight if once else torch.where(free > 0, weight / free.sqrt(), 0.0)

    def bounded_stiffness(self, stiffest: float = math.inf) -> Tensor | None:
        """Return c `[g]` of the pull; None without a pull."""
        if self.stiffness is None:
            return None
        return (self.stiffness / self._slack).clamp(max=stiffest)  # relative to the scaled odds

    def matrix(self, scale: Tensor) -> Tensor:
        """Compute U diag(scale) Uᵀ `[g, d, d]` for a scale `[g, 1, r]`."""
        matrix: Tensor = (self.vectors * scale) @ self.vectors.mT
        return matrix


def restrict(claimed: Conceptor, columns: Tensor) -> Conceptor:
    """Return the conceptor for changes of these columns, with the other columns fixed.

    It is the conceptor of the submatrix of the odds Q. Directions of infinite odds are claimed
    with their components in these columns.
    """
    spectrum = claimed.form.spectrum()
    batch = claimed.batch_shape
    items = []
    if spectrum.rest:  # everything else is claimed: list all directions
        spectrum = spectra.complete(spectrum)
    for item in spectra.items_of(spectrum, batch):
        rows = item.vectors[columns.to(item.vectors.device)]  # [k, r]
        hard = torch.isinf(item.odds)
        soft_part = spectra.from_odds_matrix((rows * torch.where(hard, 0.0, item.odds)) @ rows.mT)
        left, sines, _ = spectra.svd(rows[:, hard], full_matrices=False)
        vectors = left[:, sines > spectra.tolerance(len(columns), rows.dtype)]
        odds = torch.full((vectors.shape[1],), torch.inf, dtype=rows.dtype, device=rows.device)
        hard_part = spectra.Spectrum(vectors, odds)
        items.append(logic.disjoin(soft_part, hard_part) if vectors.shape[1] else soft_part)
    joined = spectra.stack(items, batch) if batch else items[0]
    return Conceptor.from_form(SpectrumForm(joined, claimed.dtype))
