"""Laws of logic and apertures: what holds for conceptors of every kind, and what does not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Conceptor
from helpers import (
    KINDS,
    build,
    conceptors,
    distance,
    eye,
    normal,
    reference_and,
    reference_or,
    rotation,
    same,
    symmetric,
)

GAMMAS = st.sampled_from([0.0, 1e-6, 1e-3, 0.5, 1.0, 2.0, 30.0, 1e6, math.inf])
FINITE = st.sampled_from([1e-6, 1e-3, 0.1, 1.0, math.sqrt(2), 7.0, 1e3, 1e6])


def phi(C: Tensor, gamma: float) -> Tensor:
    """φ(C, γ) = C (C + γ⁻² (I - C))⁻¹ as printed, for γ > 0 and without singular trouble."""
    found: Tensor = C @ torch.linalg.inv(C + gamma**-2 * (eye(len(C)) - C))
    return found


# --- against independent references ------------------------------------------------------


@given(conceptors(2, kinds=("soft", "deficient", "hard", "mixed", "zero", "identity", "data")))
def test_and_and_or_are_those_of_the_literature(pair: list[Conceptor]) -> None:
    A, B = pair
    assert same(A & B, reference_and(A.matrix(), B.matrix()), 1e-7)
    assert same(A | B, reference_or(A.matrix(), B.matrix()), 1e-7)


@given(conceptors(2, kinds=("soft", "data", "identity")))
def test_invertible_conceptors_follow_the_inverse_formula(pair: list[Conceptor]) -> None:
    """A ∧ B = (A⁻¹ + B⁻¹ - I)⁻¹."""
    A, B = (C.dense() for C in pair)
    if min(float(C.singular_values.min()) for C in (A, B)) > 0:
        inverses = torch.linalg.inv(A.matrix()) + torch.linalg.inv(B.matrix())
        assert same(A & B, torch.linalg.inv(inverses - eye(A.dim)))


@given(st.integers(0, 1000), st.integers(1, 8), st.floats(0.1, 10))
def test_or_at_equal_aperture_is_the_conceptor_of_the_sum(
    seed: int, dim: int, aperture: float
) -> None:
    """Full and deficient rank, lazy and factored: C(R₁) ∨ C(R₂) = C(R₁ + R₂)."""
    for count in (1, dim, 3 * dim):
        X, Y = normal(seed, count, dim), normal(seed + 1, count, dim)
        A, B = Conceptor.from_states(X, aperture), Conceptor.from_states(Y, aperture)
        total = X.mT @ X / count + Y.mT @ Y / count
        wanted = Conceptor.from_correlation(total, aperture)
        assert same(A | B, wanted, 1e-10)
        assert same(A.dense().adapt(1.0) | B.adapt(1.0), wanted, 1e-9)  # by spectra
        assert (A | B).aperture == A.aperture


def test_many_ors_are_the_conceptor_of_the_sum_of_all() -> None:
    X = normal(0, 12, 3, 30)
    together = Conceptor.zero(30)
    for rows in X:
        together = together | Conceptor.from_states(rows, 2.0)
    wanted = Conceptor.from_correlation((X.mT @ X / 3).sum(0), 2.0)
    assert same(together, wanted, 1e-10)


@given(conceptors(1), FINITE)
def test_adaptation_is_its_formula(one: list[Conceptor], gamma: float) -> None:
    C = one[0]
    s = C.singular_values
    soft = bool(((s == 0) | (s == 1) | ((s > 1e-3) & (s < 1 - 1e-3))).all())
    if soft and 1e-3 <= gamma <= 1e3:
        assert same(C.adapt(gamma), phi(C.matrix(), gamma), 1e-7)
    odds = torch.where(s < 1, s / (1 - s), torch.inf)
    wanted = torch.where(s < 1, gamma**2 * odds / (1 + gamma**2 * odds), 1.0)
    torch.testing.assert_close(C.adapt(gamma).singular_values, wanted, atol=1e-9, rtol=0)


# --- NOT ---------------------------------------------------------------------------------


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
    assert same(A | B, ~(~A & ~B))


# --- AND and OR --------------------------------------------------------------------------


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
    for neutral, found in ((C, C | zero), (C, zero | C), (C, C & identity), (C, identity & C)):
        torch.testing.assert_close(
            found.singular_values, neutral.singular_values, rtol=1e-12, atol=0
        )
        assert same(found, neutral, 1e-12)
    for o in (zero, zero.dense()):
        assert same(C | o, C)
        assert torch.equal((C & o).matrix(), zero.matrix())
        assert torch.equal((o & C).matrix(), zero.matrix())
    for i in (identity, identity.dense()):
        assert same(C & i, C)
        assert float((C | i).singular_values.min()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_or_with_zero_keeps_even_what_is_nearly_one(dtype: torch.dtype) -> None:
    """The start of every sequence of tasks must not round odds of 10⁷ to infinity."""
    C = Conceptor.from_states(100 * normal(0, 60, 40).to(dtype), 30.0)
    for found in (Conceptor.zero(40, dtype=dtype) | C, C | Conceptor.zero(40, dtype=dtype)):
        back = found.adapt(1e-4)
        torch.testing.assert_close(back.singular_values, C.adapt(1e-4).singular_values)
        assert 0 < float(back.quota) < 0.5


@given(st.integers(0, 10**6), st.integers(2, 8), st.data())
def test_hard_projectors_make_the_lattice_of_subspaces(seed: int, dim: int, data: Any) -> None:
    """AND projects on the intersection of the ranges, OR on their sum, exactly."""
    both = data.draw(st.integers(0, dim - 1), label="dimension of the intersection")
    only_a = data.draw(st.integers(0, dim - both), label="dimensions of A alone")
    only_b = data.draw(st.integers(0, dim - both - only_a), label="dimensions of B alone")
    basis = torch.linalg.qr(normal(seed, dim, dim)).Q
    skew = normal(seed + 1, only_a, only_b)  # the private parts are not orthogonal
    shared, a, b = (
        basis[:, :both],
        basis[:, both : both + only_a],
        basis[:, both + only_a :][:, :only_b],
    )
    span_a = torch.linalg.qr(torch.cat([shared, a], 1)).Q @ rotation(seed + 2, both + only_a)
    span_b = torch.linalg.qr(torch.cat([shared, b + a @ skew], 1)).Q @ rotation(
        seed + 3, both + only_b
    )
    joined = torch.cat([shared, a, b], 1)
    projectors = [
        Conceptor.from_spectrum(u, torch.ones(u.shape[1]).double()) for u in (span_a, span_b)
    ]
    for A, B in (
        projectors,
        [P.dense() for P in projectors],
        [projectors[0], projectors[1].dense()],
    ):
        assert same(A & B, shared @ shared.mT)
        assert same(A | B, joined @ joined.mT)
        assert (A & B).singular_values.tolist() == [1.0] * both + [0.0] * (dim - both)
        total = both + only_a + only_b
        assert (A | B).singular_values.tolist() == [1.0] * total + [0.0] * (dim - total)


@given(st.integers(0, 10**6), st.integers(2, 8), st.data())
def test_and_of_soft_conceptors_lives_on_the_intersection(seed: int, dim: int, data: Any) -> None:
    both = data.draw(st.integers(0, dim - 1))
    rest = data.draw(st.integers(0, (dim - both) // 2))
    basis = rotation(seed, dim)
    shared, a, b = basis.split([both, rest, dim - both - rest], 1)
    A, B = (
        Conceptor.from_spectrum(
            torch.linalg.qr(torch.cat([shared, own], 1)).Q,
            normal(seed + i, both + own.shape[1]).sigmoid(),
        )
        for i, own in enumerate((a, b[:, :rest]))
    )
    found = A & B
    assert same(shared @ shared.mT @ found.matrix(), found.matrix())
    assert int((found.singular_values > 0).sum()) == both


# --- aperture ----------------------------------------------------------------------------


@given(conceptors(1), FINITE, FINITE)
def test_adaptations_compose(one: list[Conceptor], g: float, h: float) -> None:
    C = one[0]
    assert same(C.adapt(g).adapt(h), C.adapt(g * h), 1e-12)
    assert same(C.adapt(g).adapt(1 / g), C, 1e-12)


def test_adaptation_loses_nothing_on_the_way() -> None:
    """Through γ = 10⁶ (all singular values within 10⁻¹² of 1) and back."""
    C = Conceptor.from_states(normal(0, 30, 6), 1.0)
    back = C.adapt(1e6).adapt(1e-6)
    torch.testing.assert_close(back.singular_values, C.singular_values, rtol=1e-14, atol=0)
    back = ~(~C).adapt(1e-7).adapt(1e3).adapt(1e4)
    torch.testing.assert_close(back.singular_values, C.singular_values, rtol=1e-13, atol=0)


@given(conceptors(1), GAMMAS)
def test_not_turns_the_aperture_around(one: list[Conceptor], gamma: float) -> None:
    """¬φ(C, γ) = φ(¬C, 1/γ), also at 0 and infinity."""
    C = one[0]
    inverse = math.inf if gamma == 0 else 1 / gamma
    assert same(~C.adapt(gamma), (~C).adapt(inverse), 1e-12)


@given(conceptors(1))
def test_limits_of_the_aperture(one: list[Conceptor]) -> None:
    C = one[0]
    s = C.singular_values
    assert torch.equal(C.adapt(math.inf).singular_values, (s > 0).double())
    assert torch.equal(C.adapt(0).singular_values, (s == 1).double())
    P = C.adapt(math.inf).matrix()
    assert same(P @ C.matrix(), C.matrix(), 1e-12)  # the projector on the range
    K = C.adapt(0).matrix()
    assert same(K @ C.matrix(), K, 1e-12)  # the projector on what C leaves as it is


@given(
    conceptors(2, kinds=("soft", "deficient", "hard", "mixed", "data")), st.sampled_from([0.1, 3.0])
)
def test_adaptation_distributes_over_and_and_or(pair: list[Conceptor], gamma: float) -> None:
    """Odds add in OR, and adaptation scales them."""
    A, B = pair
    assert same((A | B).adapt(gamma), A.adapt(gamma) | B.adapt(gamma), 1e-7)
    assert same((A & B).adapt(gamma), A.adapt(gamma) & B.adapt(gamma), 1e-7)


# --- laws that do not hold, pinned -------------------------------------------------------


@given(conceptors(1))
def test_or_is_not_idempotent_but_widens_the_aperture(one: list[Conceptor]) -> None:
    """C ∨ C = φ(C, √2) and C ∧ C = φ(C, 1/√2)."""
    C = one[0]
    assert same(C | C, C.adapt(math.sqrt(2)), 1e-9)
    assert same(C & C, C.adapt(1 / math.sqrt(2)), 1e-9)


def test_idempotence_fails() -> None:
    """s = 1/2 has odds 1; twice that is s = 2/3."""
    C = Conceptor.from_matrix(torch.tensor([[0.5]]).double())
    assert float((C | C).matrix()) == pytest.approx(2 / 3, abs=1e-15)
    assert float((C & C).matrix()) == pytest.approx(1 / 3, abs=1e-15)


def test_absorption_fails() -> None:
    """A ∨ (A ∧ B) = A and A ∧ (A ∨ B) = A fail at once: odds 1 + 1/2, and 1 / (1 + 1/2)."""
    A = B = Conceptor.from_matrix(torch.tensor([[0.5]]).double())
    assert float((A | (A & B)).matrix()) == pytest.approx(0.6, abs=1e-15)
    assert float((A & (A | B)).matrix()) == pytest.approx(0.4, abs=1e-15)


def test_distributivity_fails() -> None:
    """A ∧ (B ∨ C) against (A ∧ B) ∨ (A ∧ C), all s = 1/2: odds 2/3 against 1."""
    A = B = C = Conceptor.from_matrix(torch.tensor([[0.5]]).double())
    assert float((A & (B | C)).matrix()) == pytest.approx(2 / 5, abs=1e-15)
    assert float(((A & B) | (A & C)).matrix()) == pytest.approx(1 / 2, abs=1e-15)


def test_distributivity_fails_even_for_projectors() -> None:
    """Three lines in a plane: A ∧ (B ∨ C) = A, but A ∧ B = A ∧ C = 0."""
    A, B, C = (
        Conceptor.from_spectrum(rotation(seed, 2)[:, :1], torch.ones(1).double())
        for seed in (1, 2, 3)
    )
    assert same(A & (B | C), A)
    assert same((A & B) | (A & C), Conceptor.zero(2))


def test_the_excluded_third_and_contradiction_fail() -> None:
    """C ∨ ¬C = I and C ∧ ¬C = 0 hold for hard conceptors only."""
    C = Conceptor.from_spectrum(eye(2), torch.tensor([0.5, 1.0]).double())
    assert (C | ~C).singular_values.tolist() == pytest.approx([1, 2 / 3])
    assert (C & ~C).singular_values.tolist() == pytest.approx([1 / 3, 0])
    H = C.harden(0.7)
    assert same(H | ~H, eye(2))
    assert same(H & ~H, Conceptor.zero(2))


def test_every_kind_of_conceptor_is_tried() -> None:
    """The generator really makes exact zeros and ones, soft values, and all three forms."""
    R = symmetric(0, 9, 6)
    found = {kind: build(kind, "dense", rotation(0, 6), 5).singular_values for kind in KINDS}
    assert {0.0, 1.0} < set(found["mixed"].tolist())
    assert set(found["hard"].tolist()) == {0.0, 1.0}
    assert 0.0 in found["deficient"].tolist()
    assert 1.0 not in found["deficient"].tolist()
    assert float(found["wide"].min()) < 2e-3 < 1 - 1e-3 < float(found["wide"].max())
    assert build("soft", "negated", rotation(0, 6), 3).spectrum[2] == 1
    assert build("soft", "factored", rotation(0, 6), 3).is_factored
    assert distance(Conceptor.from_correlation(R, 1.0), Conceptor.from_correlation(R, 2.0)) > 0.01
