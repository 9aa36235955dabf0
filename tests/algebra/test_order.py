"""Order, quota, hardening and similarity, for conceptors of every kind."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Conceptor, similarity
from helpers import (
    build,
    conceptors,
    eye,
    normal,
    rotation,
    same,
)

# --- order -------------------------------------------------------------------------------


@given(conceptors(2))
def test_order(pair: list[Conceptor]) -> None:
    A, B = pair
    assert bool(A <= (A | B))
    assert bool((A & B) <= A)
    assert bool((A | B) >= B)
    assert bool(Conceptor.zero(A.dim) <= A)
    assert bool(Conceptor.identity(A.dim) >= A)
    assert bool(A.dense() >= A)
    assert bool((A & B) <= (A | B))


@given(conceptors(2))
def test_order_is_that_of_the_difference(pair: list[Conceptor]) -> None:
    A, B = pair
    low = float(torch.linalg.eigvalsh(B.matrix() - A.matrix()).min())
    assert bool(A <= B) == (low > -1e-12)


@given(conceptors(2, kinds=("soft", "deficient", "hard", "mixed", "data")))
def test_not_reverses_the_order(pair: list[Conceptor]) -> None:
    A, B = pair
    assert bool(~(A | B) <= ~A)
    assert bool(A <= B) == bool(~B <= ~A)


@given(conceptors(3, kinds=("soft", "deficient", "hard", "mixed", "data")))
def test_monotone(triple: list[Conceptor]) -> None:
    """A <= A ∨ D gives A ∨ B <= (A ∨ D) ∨ B, the same for AND, and quotas follow."""
    A, B, D = triple
    above = (A | D).matrix()
    for smaller, larger in ((A | B, (A | D) | B), (A & B, (A | D) & B)):
        gap = torch.linalg.eigvalsh(larger.matrix() - smaller.matrix())
        assert float(gap.min()) > -1e-8
        assert float(smaller.quota) <= float(larger.quota) + 1e-9
    for gamma in (1.5, 10.0):
        gap = torch.linalg.eigvalsh(A.adapt(gamma).matrix() - A.matrix())
        assert float(gap.min()) > -1e-10
    assert float(torch.linalg.eigvalsh(above - A.matrix()).min()) > -1e-10


def test_order_can_fail_both_ways_and_sees_small_violations() -> None:
    A = Conceptor.from_matrix(torch.diag(torch.tensor([0.9, 0.1])).double())
    B = Conceptor.from_matrix(torch.diag(torch.tensor([0.1, 0.9])).double())
    assert not bool(A <= B)
    assert not bool(B <= A)
    slightly_less = Conceptor.from_matrix(A.matrix() * (1 - 1e-9))
    assert bool(slightly_less <= A)
    assert not bool(slightly_less >= A)
    part = Conceptor.from_spectrum(rotation(0, 9)[:, :2], torch.tensor([0.9, 0.4]).double())
    slightly_less = part.adapt(1 - 1e-9)
    assert bool(slightly_less <= part)
    assert not bool(slightly_less >= part)
    wide = Conceptor.from_spectrum(rotation(0, 100)[:, :5].float(), torch.full((5,), 0.5))
    less = Conceptor.from_spectrum(wide.spectrum[0], torch.full((5,), 0.498))
    assert bool(less <= wide)
    assert not bool(wide <= less)
    assert not bool(wide.dense() <= less)
    with pytest.raises(TypeError):
        bool(A < B)  # type: ignore[operator]


# --- quota, harden -----------------------------------------------------------------------


@given(conceptors(2))
def test_quota_stays_in_bounds(pair: list[Conceptor]) -> None:
    A, B = pair
    for C in (A, B, ~A, A | B, A & B, A.adapt(3.0), A.harden()):
        s = C.singular_values
        assert 0 <= float(C.quota) <= 1
        assert bool(((s >= 0) & (s <= 1)).all())
        assert bool((s[:-1] >= s[1:]).all())
        torch.testing.assert_close(C.quota, s.mean(), atol=1e-12, rtol=0)
        torch.testing.assert_close(C.quota, C.matrix().trace() / C.dim, atol=1e-10, rtol=0)
    assert float((A & B).quota) <= float(A.quota) + 1e-12 <= float((A | B).quota) + 2e-12


@given(conceptors(1), st.sampled_from([1e-3, 0.3, 0.5, 0.9, 1.0]))
def test_harden(one: list[Conceptor], threshold: float) -> None:
    C = one[0]
    H = C.harden(threshold)
    s = C.singular_values
    assert torch.equal(H.singular_values, (s >= threshold).double())
    assert same(H.matrix() @ H.matrix(), H.matrix(), 1e-12)
    assert same(H.matrix() @ C.matrix(), C.matrix() @ H.matrix(), 1e-12)  # the same directions
    kept = torch.linalg.eigvalsh(H.matrix() @ C.matrix() @ H.matrix()).flip(0)
    torch.testing.assert_close(kept, torch.where(s >= threshold, s, 0.0), atol=1e-10, rtol=0)
    assert same(H.harden(), H, 1e-15)


def test_the_default_threshold_is_one_half_inclusive() -> None:
    C = Conceptor.from_spectrum(eye(3), torch.tensor([0.5, 0.49999, 0.7]).double())
    assert torch.equal(C.harden().matrix(), torch.diag(torch.tensor([1.0, 0, 1])).double())


# --- similarity --------------------------------------------------------------------------


def report_similarity(A: Tensor, B: Tensor) -> float:
    """|(S^i)^½ (U^i)ᵀ U^j (S^j)^½|² / (|diag S^i| |diag S^j|), by singular value decompositions."""
    (Ua, Sa, _), (Ub, Sb, _) = torch.linalg.svd(A), torch.linalg.svd(B)
    inner = Sa.sqrt().diag() @ Ua.mT @ Ub @ Sb.sqrt().diag()
    return float(inner.square().sum() / (Sa.norm() * Sb.norm()))


@given(conceptors(2))
def test_similarity_is_that_of_the_report(pair: list[Conceptor]) -> None:
    A, B = pair
    rho = float(similarity(A, B))
    assert 0 <= rho <= 1
    assert rho == pytest.approx(float(similarity(B, A)), abs=1e-14)
    if float(A.quota) > 1e-9 and float(B.quota) > 1e-9:
        assert rho == pytest.approx(report_similarity(A.matrix(), B.matrix()), abs=1e-12)
        assert float(similarity(A, A.dense())) == 1
    else:
        assert rho == pytest.approx(0, abs=1e-6)


@given(
    st.integers(0, 1000),
    st.floats(0.001, 1),
    st.sampled_from(["soft", "deficient", "hard", "wide"]),
)
def test_similarity_of_multiples_is_exactly_one(seed: int, factor: float, kind: str) -> None:
    A = build(kind, "dense", rotation(seed, 6), seed)
    if float(A.quota) > 0:
        B = Conceptor.from_matrix(factor * A.matrix())
        assert float(similarity(A, B)) == 1
        assert float(similarity(A.factored(), B.factored())) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["factored", "dense"])
def test_similarity_of_orthogonal_conceptors_is_exactly_zero(dtype: torch.dtype, form: str) -> None:
    U = rotation(0, 60).to(dtype)
    s = normal(1, 8).sigmoid().to(dtype)
    A, B = (Conceptor.from_spectrum(U[:, i : i + 8], s) for i in (0, 8))
    if form == "dense":
        A, B = A.dense(), B.dense()
    assert float(similarity(A, B)) == 0
    hard = A.harden()
    assert float(similarity(hard, ~hard)) == 0
    assert float(similarity(A, A.dense())) == 1
    assert float(similarity(A, Conceptor.zero(60, dtype=dtype))) == 0
    zero, identity = Conceptor.zero(60, dtype=dtype), Conceptor.identity(60, dtype=dtype)
    assert float(similarity(zero, zero)) == float(similarity(zero, identity)) == 0
    assert float(similarity(identity, identity)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["factored", "dense"])
def test_nearly_is_not_exactly(dtype: torch.dtype, form: str) -> None:
    """In many dimensions a similarity of 0.9995 is not 1, and one of 0.0005 is not 0."""
    dim = 2000 if form == "factored" else 200
    e = torch.eye(dim, 4, dtype=dtype)
    A = Conceptor.from_spectrum(e[:, :2], torch.tensor([1.0, 1.0], dtype=dtype))
    tilt = math.sqrt(0.001)
    turned = math.sqrt(1 - tilt**2) * e[:, 1] + tilt * e[:, 2]
    B = Conceptor.from_spectrum(torch.stack([e[:, 0], turned], 1), torch.ones(2, dtype=dtype))
    away = math.sqrt(1 - tilt**2) * e[:, 3] + tilt * e[:, 0]
    N = Conceptor.from_spectrum(torch.stack([e[:, 2], away], 1), torch.ones(2, dtype=dtype))
    if form == "dense":
        A, B, N = A.dense(), B.dense(), N.dense()
    assert float(similarity(A, B)) == pytest.approx(0.9995, abs=1e-6)
    assert float(similarity(A, N)) == pytest.approx(0.0005, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [3, 40])
def test_similarity_does_not_depend_on_the_scale_of_the_data(
    dtype: torch.dtype, count: int
) -> None:
    X, Y = normal(0, count, 6).to(dtype), normal(1, count, 6).to(dtype)
    small = [Conceptor.from_states(1e-7 * Z, 1.0) for Z in (X, Y)]  # s about 1e-14
    tiny = [Conceptor.from_states(1e-15 * Z, 1.0) for Z in (X, Y)]
    found, again = similarity(*small), similarity(*tiny)
    wanted = float((X.mT @ X * (Y.mT @ Y)).sum() / ((X.mT @ X).norm() * (Y.mT @ Y).norm()))
    assert float(found) == pytest.approx(wanted, rel=1e-5)
    assert float(again) == pytest.approx(wanted, rel=1e-5)
    assert float(similarity(tiny[0], tiny[0].dense())) == 1
