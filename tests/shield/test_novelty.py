"""OR that counts what is shared once, and how much longer steps may be: against dense formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.shield.novelty import join_novel, stride


def correlation(dim: int, rank: int, *batch: int) -> Tensor:
    rows = torch.randn(*batch, rank, dim, dtype=torch.float64)
    return rows.mT @ rows / rank


def odds(conceptor: Conceptor) -> Tensor:
    matrix = conceptor.matrix()
    found: Tensor = matrix @ torch.linalg.inv(torch.eye(len(matrix)).to(matrix) - matrix)
    return found


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
        wanted = root @ turn @ torch.diag(total) @ turn.mT @ root.mT
        torch.testing.assert_close(odds(joined), wanted, rtol=1e-8, atol=1e-8)
    assert bool(joined >= A)  # at least what each claims
    assert bool(joined >= C)
    assert bool(joined <= (A | C))  # at most what OR claims


def test_nothing_known_is_or_bit_for_bit() -> None:
    A, C = (Conceptor.from_correlation(correlation(5, 4), 3.0) for _ in range(2))
    assert torch.equal(join_novel(A, C, 0.0).matrix(), (A | C).matrix())


def test_what_is_known_wholly_is_not_claimed_twice() -> None:
    A = Conceptor.from_correlation(correlation(5, 3), 3.0)
    torch.testing.assert_close(join_novel(A, A, 1.0).matrix(), A.matrix())
    first, second = torch.eye(4, dtype=torch.float64).split(2)
    left, right = (Conceptor.from_states(rows, 3.0) for rows in (first, second))
    torch.testing.assert_close(join_novel(left, right, 1.0).matrix(), (left | right).matrix())


def test_factored_conceptors_stay_factored() -> None:
    rows = [torch.randn(3, 20, dtype=torch.float64) for _ in range(2)]
    thin = [Conceptor.from_states(x, 3.0).factored(rank=3) for x in rows]
    dense = [Conceptor.from_correlation(x.mT @ x / 3, 3.0) for x in rows]
    joined = join_novel(thin[0], thin[1], 0.7)
    assert joined.rank <= 6
    wanted = join_novel(dense[0], dense[1], 0.7)
    torch.testing.assert_close(joined.matrix(), wanted.matrix(), rtol=0, atol=1e-9)
    torch.testing.assert_close(stride(thin[0], thin[1], 1.0), stride(dense[0], dense[1], 1.0))


def test_hard_conceptors_are_joined_by_or() -> None:
    A, C = (Conceptor.from_correlation(correlation(5, 3), 3.0).harden() for _ in range(2))
    assert torch.equal(join_novel(A, C, 1.0).matrix(), (A | C).matrix())


@pytest.mark.parametrize("known", [0.0, 0.5, 1.0])
def test_stride_is_its_formula(known: float) -> None:
    old, new = correlation(6, 9), correlation(6, 9)
    free = torch.linalg.inv(torch.eye(6).double() + 16 * old)
    A = Conceptor.from_correlation(old, 4.0)
    ratio = torch.linalg.eigvalsh(new)[-1] / torch.linalg.eigvals(free @ new).real.max()
    for aperture in (1.0, 9.0):  # it cancels
        found = stride(A, Conceptor.from_correlation(new, aperture), known)
        torch.testing.assert_close(found, ratio ** (known / 2))


def test_strides_are_bounded() -> None:
    A = Conceptor.from_correlation(correlation(5, 5), 3.0)
    whole = Conceptor.identity(5, dtype=torch.float64)
    assert float(stride(whole, A, 1.0)) == pytest.approx(100.0)
    nothing = Conceptor.from_correlation(torch.zeros(5, 5, dtype=torch.float64), 3.0)
    assert float(stride(nothing, A, 1.0)) == pytest.approx(1.0)
    assert float(stride(A, nothing, 1.0)) == pytest.approx(1.0)
