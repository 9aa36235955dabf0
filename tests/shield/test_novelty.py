"""OR that counts shared energy once, and how much longer steps may be: against dense formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.shield.novelty import join_novel, stride
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


def test_what_is_known_wholly_is_not_claimed_twice() -> None:
    A = Conceptor.from_correlation(correlation(5, 3), 3.0)
    torch.testing.assert_close(join_novel(A, A, 1.0).matrix(), A.matrix())
    left, right = (Conceptor.from_states(x, 3.0) for x in eye(4).split(2))
    torch.testing.assert_close(join_novel(left, right, 1.0).matrix(), (left | right).matrix())


def test_factored_conceptors_stay_factored() -> None:
    rows = [torch.randn(3, 20, dtype=torch.float64) for _ in range(2)]
    thin = [Conceptor.from_states(x, 3.0).factored(rank=3) for x in rows]
    dense = [Conceptor.from_correlation(x.mT @ x / 3, 3.0) for x in rows]
    joined = join_novel(thin[0], thin[1], 0.7)
    assert joined.rank <= 6
    expected = join_novel(dense[0], dense[1], 0.7)
    torch.testing.assert_close(joined.matrix(), expected.matrix(), rtol=0, atol=1e-9)
    torch.testing.assert_close(stride(thin[0], thin[1], 1.0), stride(dense[0], dense[1], 1.0))


@pytest.mark.parametrize("known", [0.0, 0.5, 1.0])
def test_stride_is_its_formula(known: float) -> None:
    old, new = correlation(6, 9), correlation(6, 9)
    free = torch.linalg.inv(eye(6) + 16 * old)
    A = Conceptor.from_correlation(old, 4.0)
    ratio = torch.linalg.eigvalsh(new)[-1] / torch.linalg.eigvals(free @ new).real.max()
    for aperture in (1.0, 9.0):  # it cancels
        longer = stride(A, Conceptor.from_correlation(new, aperture), known)
        torch.testing.assert_close(longer, ratio ** (known / 2))


def test_strides_are_bounded() -> None:
    A = Conceptor.from_correlation(correlation(5, 5), 3.0)
    whole = Conceptor.identity(5, dtype=torch.float64)
    assert float(stride(whole, A, 1.0)) == pytest.approx(100.0)
    nothing = Conceptor.from_correlation(torch.zeros(5, 5).double(), 3.0)
    assert float(stride(nothing, A, 1.0)) == pytest.approx(1.0)
    assert float(stride(A, nothing, 1.0)) == pytest.approx(1.0)
