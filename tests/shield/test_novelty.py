"""OR that counts shared energy once, and how much longer steps may be: against dense formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.shield.claims import join_novel, stride
from helpers import eye


def correlation(dim: int, rank: int, *batch: int) -> Tensor:
    rows = torch.randn(*batch, rank, dim, dtype=torch.float64)
    return rows.mT @ rows / rank


@pytest.mark.parametrize("known", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rank", [3, 9])
def test_join_novel_is_its_formula(known: float, rank: int) -> None:
    old, more = correlation(6, rank), correlation(6, rank)
    A, C = Conceptor.from_correlation(old, 3.0), Conceptor.from_correlation(more, 2.0)
    joined = join_novel(A, C, known)
    if rank > 6:  # M with Mᵀ Q_A M diagonal and Mᵀ Q_C M = I, by Cholesky instead
        root = torch.linalg.cholesky(4 * more)
        inner = torch.linalg.solve(root, torch.linalg.solve(root, 9 * old).mT)
        ratios, turn = torch.linalg.eigh(inner)
        total = ratios + (1 - known * ratios).clamp_min(0)
        expected = root @ turn @ torch.diag(total) @ turn.mT @ root.mT
        odds = joined.matrix() @ torch.linalg.inv(eye(6) - joined.matrix())
        torch.testing.assert_close(odds, expected, rtol=1e-8, atol=1e-8)
    assert bool(joined >= A)  # at least what each claims
    assert bool(joined >= C)
    assert bool(joined <= (A | C))  # at most what OR claims


def test_nothing_known_and_hard_conceptors_are_joined_by_or_bit_for_bit() -> None:
    A, C = (Conceptor.from_correlation(correlation(5, 3), 3.0) for _ in range(2))
    for known, (left, right) in {0.0: (A, C), 1.0: (A.harden(), C.harden())}.items():
        assert torch.equal(join_novel(left, right, known).matrix(), (left | right).matrix())


@pytest.mark.parametrize("known", [0.0, 0.5, 1.0])
def test_stride_is_its_formula(known: float) -> None:
    old, new = correlation(6, 9), correlation(6, 9)
    free = torch.linalg.inv(eye(6) + 16 * old)
    A = Conceptor.from_correlation(old, 4.0)
    ratio = torch.linalg.eigvalsh(new)[-1] / torch.linalg.eigvals(free @ new).real.max()
    for aperture in (1.0, 9.0):  # it cancels
        longer = stride(A, Conceptor.from_correlation(new, aperture), known)
        torch.testing.assert_close(longer, ratio ** (known / 2))
