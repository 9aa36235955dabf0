"""Second moments in bounded memory, for dimensions where a d x d matrix is too large."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from conceptors._internal import checks
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.moments.correlation import (
    check_batch,
    check_has_samples,
    check_mergeable,
    check_total,
)


class FrequentDirections:
    """A sketch R̂ of rank `rank` of R = Σ w x xᵀ / Σ w, in 2 d · rank numbers.

    Frequent Directions (Liberty 2013; Ghashami et al. 2016): rows fill a buffer; when it is
    full, its squared singular values are lowered by the (rank + 1)-th, which frees half of it.
    With Δ the sum of all subtracted values, divided by Σ w,

        0 <= R - R̂ <= Δ I   and   Δ <= ‖X - X_k‖² / (Σ w · (rank + 1 - k))   for every k <= rank,

    X_k the best approximation of rank k. `error_bound` is Δ, known after the fact, usually far
    below the second bound. As s(σ) = σ / (σ + α⁻²) is operator monotone, the conceptor is off by
    at most Δ / (Δ + α⁻²) in the spectral norm.

    >>> import torch
    >>> sketch = FrequentDirections(dim=1000, rank=4)
    >>> low = torch.randn(500, 3, dtype=torch.float64) @ torch.randn(3, 1000, dtype=torch.float64)
    >>> for batch in low.split(64):
    ...     _ = sketch.update(batch)
    >>> sketch.error_bound < 1e-9, sketch.conceptor(aperture=10.0).rank
    (True, 4)
    """

    def __init__(self, dim: int, rank: int, *, device: torch.device | str | None = None) -> None:
        self.dim = checks.whole(dim, "dim", 1)
        self.rank = checks.whole(rank, "rank", 1, self.dim)
        self._rows = torch.zeros(2 * self.rank, self.dim, dtype=torch.float64, device=device)
        self._filled = 0
        self._subtracted = 0.0
        self.weight = 0.0
        self.count = 0

    def update(self, samples: Tensor, weight: float = 1.0) -> FrequentDirections:
        """Add samples `[..., d]`, each counted `weight` times."""
        rows, weight = check_batch(samples, weight, self._rows)
        rows, added = rows * math.sqrt(weight), weight * len(rows)
        check_total(self._energy() + rows.square().sum(), self.weight + added)
        return self._add(rows, 0.0, added, len(rows))

    def merge(self, other: FrequentDirections) -> FrequentDirections:
        """Add the samples of another sketch. The error bounds add up."""
        check_mergeable(self, other)
        energy = self._energy() + other._energy().to(self._rows)
        check_total(energy, self.weight + other.weight)
        rows = other._rows[: other._filled].to(self._rows)
        return self._add(rows, other._subtracted, other.weight, other.count)

    def all_reduce(self, group: Any = None) -> FrequentDirections:
        """Replace this by the merge over all processes, the same on each, in order of rank."""
        if not (dist.is_available() and dist.is_initialized()):
            return self
        self._compress()
        state = [self._filled, self._subtracted, self.weight, self.count]
        numbers = torch.tensor(state, dtype=torch.float64, device=self._rows.device)
        gathered: list[list[Tensor]] = []
        for part in (self._rows[: self.rank].clone(), numbers):
            parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
            dist.all_gather(parts, part, group=group)
            gathered.append(parts)
        self._filled, self._subtracted, self.weight, self.count = 0, 0.0, 0.0, 0
        for rows, scalars in zip(*gathered):
            filled, subtracted, weight, count = scalars.tolist()
            self._add(rows[: int(filled)], subtracted, weight, int(count))
        return self

    @property
    def error_bound(self) -> float:
        """Δ: the spectral norm of R - R̂ is at most this."""
        _, lowered = _lower(self._rows[: self._filled], self.rank)
        return (self._subtracted + lowered) / self.weight if self.weight else 0.0

    def rows(self) -> Tensor:
        """B `[<= rank, d]` with R̂ = Bᵀ B."""
        check_has_samples(self)
        rows, _ = _lower(self._rows[: self._filled], self.rank)
        return rows / math.sqrt(self.weight)

    def conceptor(self, aperture: float) -> Conceptor:
        """The factored conceptor of the sketch; no d x d matrix is formed."""
        rows = self.rows()
        # from_states divides by the number of rows; the sketch is a sum already.
        return Conceptor.from_states(rows * len(rows) ** 0.5, aperture)

    def _energy(self) -> Tensor:
        return self._rows[: self._filled].square().sum()

    def _add(
        self, rows: Tensor, subtracted: float, weight: float, count: int
    ) -> FrequentDirections:
        while len(rows):
            if self._filled == len(self._rows):
                self._compress()
            taken = min(len(rows), len(self._rows) - self._filled)
            self._rows[self._filled : self._filled + taken] = rows[:taken]
            self._filled += taken
            rows = rows[taken:]
        self._subtracted += subtracted
        self.weight += weight
        self.count += count
        return self

    def _compress(self) -> None:
        """Free space in the buffer: at most `rank` rows remain."""
        rows, lowered = _lower(self._rows[: self._filled], self.rank)
        self._filled = len(rows)
        self._rows[: self._filled] = rows
        self._subtracted += lowered

    def __repr__(self) -> str:
        return (
            f"FrequentDirections(dim={self.dim}, rank={self.rank}, count={self.count}, "
            f"error_bound={self.error_bound:.3g})"
        )


def _lower(buffer: Tensor, rank: int) -> tuple[Tensor, float]:
    """Rows of the buffer `[n, d]` with all squared singular values lowered by the (rank + 1)-th.

    At most `rank` rows remain; with n <= rank the result is the buffer itself and 0.
    """
    if len(buffer) <= rank:
        return buffer, 0.0
    squares, turn = torch.linalg.eigh(buffer @ buffer.mT)  # ascending
    squares = squares.clamp_min(0)
    lowered, top = squares[-rank - 1], squares[-rank:]
    rounding = spectra.tolerance(len(buffer), buffer.dtype) * top[-1]
    scale = torch.where(top > rounding, ((top - lowered) / top).clamp_min(0), 0.0).sqrt()
    return (turn[:, -rank:] * scale).mT @ buffer, float(lowered)
