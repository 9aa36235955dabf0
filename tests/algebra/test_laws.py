"""Laws of logic, apertures, order and similarity, for conceptors of every kind."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Conceptor, similarity
from helpers import conceptors, eye, normal, rotation, same

GAMMAS = st.sampled_from([0.0, 1e-6, 1e-3, 0.5, 1.0, 2.0, 30.0, 1e6, math.inf])
FINITE = st.sampled_from([1e-6, 1e-3, 0.1, 1.0, math.sqrt(2), 7.0, 1e3, 1e6])


@given(conceptors(1))
def test_not_is_the_complement_and_its_own_inverse(one: list[Conceptor]) -> None:
    C = one[0]
    assert same(~C, eye(C.dim) - C.matrix(), 1e-12)
    torch.testing.assert_close((~C).singular_values, (1 - C.singular_values).flip(-1))
    assert same(~~C, C, 1e-12)
    assert torch.equal((~~C).singular_values == 1, C.singular_values == 1)
    assert torch.equal((~~C).singular_values == 0, C.singular_values == 0)
    torch.testing.assert_close((~C).quota, 1 - C.quota)


@given(conceptors(2))
def test_de_morgan(pair: list[Conceptor]) -> None:
    A, B = pair
    assert same(~(A | B), ~A & ~B)
    assert same(~(A & B), ~A | ~B)


@given(conceptors(2))
def test_commutativity(pair: list[Conceptor]) -> None:
    A, B = pair
    assert same(A | B, B | A)
    assert same(A & B, B & A)


@given(conceptors(3))
def test_associativity(triple: list[Conceptor]) -> None:
    A, B, C = triple
    assert same((A | B) | C, A | (B | C), 1e-7)
    assert same((A & B) & C, A & (B & C), 1e-7)


@given(conceptors(1))
def test_zero_and_identity_are_neutral_or_absorbing(one: list[Conceptor]) -> None:
    C = one[0]
    zero, identity = Conceptor.zero(C.dim), Conceptor.identity(C.dim)
    for result in (C | zero, zero | C, C & identity, identity & C):
        torch.testing.assert_close(result.singular_values, C.singular_values, rtol=1e-12, atol=0)
        assert same(result, C, 1e-12)
    for nothing, everything in ((zero, identity), (zero.dense(), identity.dense())):
        assert same(C | nothing, C)
        assert same(C & everything, C)
        assert torch.equal((C & nothing).matrix(), zero.matrix())
        assert float((C | everything).singular_values.min()) == 1


@given(conceptors(1), FINITE)
def test_adaptation_is_its_formula(one: list[Conceptor], gamma: float) -> None:
    """φ(C, γ) = C (C + γ⁻² (I - C))⁻¹, on every singular value."""
    C = one[0]
    s = C.singular_values
    odds = torch.where(s < 1, s / (1 - s), torch.inf)
    wanted = torch.where(s < 1, gamma**2 * odds / (1 + gamma**2 * odds), 1.0)
    torch.testing.assert_close(C.adapt(gamma).singular_values, wanted, atol=1e-9, rtol=0)


@given(conceptors(1), FINITE, FINITE)
def test_adaptations_compose(one: list[Conceptor], g: float, h: float) -> None:
    C = one[0]
    assert same(C.adapt(g).adapt(h), C.adapt(g * h), 1e-12)
    assert same(C.adapt(g).adapt(1 / g), C, 1e-12)


@given(conceptors(1), GAMMAS)
def test_not_turns_the_aperture_around(one: list[Conceptor], gamma: float) -> None:
    """¬φ(C, γ) = φ(¬C, 1/γ), also at 0 and infinity."""
    C = one[0]
    inverse = math.inf if gamma == 0 else 1 / gamma
    assert same(~C.adapt(gamma), (~C).adapt(inverse), 1e-12)
    s = C.singular_values
    assert torch.equal(C.adapt(math.inf).singular_values, (s > 0).double())
    assert torch.equal(C.adapt(0).singular_values, (s == 1).double())


@given(conceptors(1))
def test_or_is_not_idempotent_but_widens_the_aperture(one: list[Conceptor]) -> None:
    """C ∨ C = φ(C, √2) and C ∧ C = φ(C, 1/√2)."""
    C = one[0]
    assert same(C | C, C.adapt(math.sqrt(2)), 1e-9)
    assert same(C & C, C.adapt(1 / math.sqrt(2)), 1e-9)


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


def test_order_can_fail_both_ways_and_sees_small_violations() -> None:
    A = Conceptor.from_spectrum(eye(2), torch.tensor([0.9, 0.1]).double())
    assert not bool((A <= ~A) | (~A <= A))
    part = Conceptor.from_spectrum(rotation(0, 9)[:, :2], torch.tensor([0.9, 0.4]).double())
    for C in (A, part):
        assert bool(C.adapt(1 - 1e-9) <= C)
        assert not bool(C.adapt(1 - 1e-9) >= C)


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
    assert same(H.harden(), H, 1e-15)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["factored", "dense"])
def test_similarity_of_orthogonal_conceptors_is_exactly_zero(dtype: torch.dtype, form: str) -> None:
    U = rotation(0, 60).to(dtype)
    s = normal(1, 8).sigmoid().to(dtype)
    A, B = (Conceptor.from_spectrum(U[:, i : i + 8], s) for i in (0, 8))
    if form == "dense":
        A, B = A.dense(), B.dense()
    assert float(similarity(A, B)) == 0
    assert float(similarity(A, A.dense())) == 1
    assert float(similarity(A, Conceptor.zero(60, dtype=dtype))) == 0
    zero, identity = Conceptor.zero(60, dtype=dtype), Conceptor.identity(60, dtype=dtype)
    assert float(similarity(zero, zero)) == float(similarity(zero, identity)) == 0
    assert float(similarity(identity, identity)) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [3, 40])
def test_similarity_does_not_depend_on_the_scale(dtype: torch.dtype, count: int) -> None:
    X, Y = normal(0, count, 6).to(dtype), normal(1, count, 6).to(dtype)
    wanted = float((X.mT @ X * (Y.mT @ Y)).sum() / ((X.mT @ X).norm() * (Y.mT @ Y).norm()))
    for scale in (1e-7, 1e-15):
        A, B = (Conceptor.from_states(scale * Z, 1.0) for Z in (X, Y))
        assert float(similarity(A, B)) == pytest.approx(wanted, rel=1e-5)
