"""Directions that tasks used, with their importance: what GPM and SGP keep of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_NOTHING = 1e-12  # of the energy: less than that is rounding

Weigh = Callable[[Tensor, Tensor], Tensor]  # importances so far, strengths σ: importances


@dataclass(frozen=True)
class Subspace:
    """Orthonormal columns M and importances λ in [0, 1], for every seed its own.

    Seeds with fewer directions than others have zero columns at the end.
    """

    basis: Tensor  # M [g, d, r], float64
    importance: Tensor  # λ [g, r]

    @staticmethod
    def empty(groups: int, dim: int, device: torch.device) -> Subspace:
        none = torch.zeros(groups, dim, 0, dtype=torch.float64, device=device)
        return Subspace(none, none[:, 0])

    @property
    def ranks(self) -> list[int]:
        found: list[int] = _used(self.basis).sum(1).tolist()
        return found

    def factors(self, like: Tensor) -> tuple[Tensor, ...]:
        """Matrices whose product is M Λ Mᵀ `[g, d, d]`: one, or two where these are less work."""
        scaled, rank = self.basis * self.importance[:, None], self.basis.shape[-1]
        if 2 * rank < self.basis.shape[1]:
            return scaled.to(like), self.basis.mT.to(like)
        return ((scaled @ self.basis.mT).to(like),)

    def extended(self, rows: Tensor, share: float | Tensor, weigh: Weigh) -> Subspace:
        """With as many new directions as it takes to cover a share of the rows' energy.

        With R̂ = R - R M Mᵀ, the leading right singular vectors of R̂ are added until
        ‖R‖² - ‖R̂‖² + Σ σ² ≥ share ‖R‖². The strength of an old direction m under these rows is
        σ = ‖R m‖, that of a new one its singular value: `weigh` makes importances of them.

        Args:
            rows: R `[g, n, d]`.
            share: one, or one for each `[g]`.
        """
        R = rows.double()
        onto = R @ self.basis  # [g, n, r]
        left = R - onto @ self.basis.mT
        energies, directions = principal(left)
        total, open_ = R.square().sum((1, 2)), left.square().sum((1, 2))
        before = (total - open_)[:, None] + energies.cumsum(1) - energies  # covered without it
        needed = before < (share * total)[:, None]
        taken = (needed & (energies > _NOTHING * total[:, None])).to(R)
        strengths = torch.cat([onto.square().sum(1).sqrt(), energies.sqrt() * taken], 1)
        basis = torch.cat([self.basis, directions * taken[:, None]], 2)
        so_far = torch.cat([self.importance, torch.zeros_like(taken)], 1)
        return _compact(basis, weigh(so_far, strengths))


def principal(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Energies σ² `[g, k]`, descending, and directions `[g, d, k]` of rows `[g, n, d]`."""
    if rows.shape[1] > rows.shape[2]:  # the second moment is the smaller matrix
        energies, directions = torch.linalg.eigh(rows.mT @ rows)
        return energies.flip(-1).clamp_min(0), directions.flip(-1)
    _, strengths, transposed = torch.linalg.svd(rows, full_matrices=False)
    return strengths.square(), transposed.mT


def _used(basis: Tensor) -> Tensor:
    """Which columns are not zero `[g, r]`."""
    return basis.square().sum(1) > 0.5


def _compact(basis: Tensor, importance: Tensor) -> Subspace:
    """Zero columns go to the end, and away where no seed has others there."""
    used = _used(basis)
    order = used.int().argsort(dim=1, descending=True, stable=True)[:, : int(used.sum(1).max())]
    return Subspace(
        basis.gather(2, order[:, None].expand(-1, basis.shape[1], -1)),
        (importance * used).gather(1, order),
    )
