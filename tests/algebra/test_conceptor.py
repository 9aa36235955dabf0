"""The value: closed forms, their precision, ways to make one, and products with vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from conceptors import Conceptor, similarity
from conceptors.algebra.spectrum import orthonormalised
from helpers import distance, eye, inverse_formula, normal, rotation, same, symmetric, wide_states

APERTURES = [0.05, 1.0, 4.0, 270.0]


# --- closed forms ------------------------------------------------------------------------


@pytest.mark.parametrize("aperture", APERTURES)
def test_states_and_correlation_give_the_closed_form(aperture: float) -> None:
    X = normal(0, 50, 7)
    R = X.mT @ X / 50
    wanted = inverse_formula(R, aperture)
    for C in (Conceptor.from_states(X, aperture), Conceptor.from_correlation(R, aperture)):
        assert distance(C, wanted) < 1e-12
        assert C.aperture == aperture
        assert C.dtype == torch.float64
        assert (C.dim, C.rank, C.batch_shape, C.is_factored) == (7, 7, torch.Size([]), False)
        assert distance(C.adapt(1.0), wanted) < 1e-10  # the same, by the spectrum


@pytest.mark.parametrize("aperture", APERTURES)
def test_singular_values_and_quota(aperture: float) -> None:
    X = wide_states(0, 60, 9, 3)
    sigma = torch.linalg.eigvalsh(X.mT @ X / 60).flip(0)
    C = Conceptor.from_states(X, aperture)
    s = sigma / (sigma + aperture**-2)
    torch.testing.assert_close(C.quota, s.mean(), rtol=1e-11, atol=0)  # by the matrix
    torch.testing.assert_close(C.singular_values, s, rtol=1e-9, atol=0)
    torch.testing.assert_close(C.quota, s.mean(), rtol=1e-11, atol=0)  # by the spectrum
    torch.testing.assert_close(C.singular_values, torch.linalg.svdvals(C.matrix()))


def test_singular_value_of_one_direction_by_hand() -> None:
    """A single sample of length 3 at aperture 2: s = 9 / (9 + 1/4)."""
    C = Conceptor.from_states(torch.tensor([[0.0, 3.0, 0.0]], dtype=torch.float64), 2.0)
    torch.testing.assert_close(C.singular_values, torch.tensor([36 / 37, 0, 0]).double())
    torch.testing.assert_close(C.matrix(), torch.diag(torch.tensor([0, 36 / 37, 0])).double())
    assert C.rank == 1


@pytest.mark.parametrize("aperture", [0.3, 2.0, 20.0])
@pytest.mark.parametrize("count", [3, 40])
def test_it_minimises_the_loss(aperture: float, count: int) -> None:
    """E|x - Cx|² + α⁻² |C|²: no step in any direction lowers it, and its gradient is zero."""
    X = normal(1, count, 5)

    def loss(matrix: Tensor) -> Tensor:
        return (X - X @ matrix.mT).square().sum(1).mean() + aperture**-2 * matrix.square().sum()

    C = Conceptor.from_states(X, aperture).matrix()
    lowest = loss(C)
    for seed in range(50):
        step = normal(seed, 5, 5)
        for size in (1e-4, 1e-2, 1.0):
            assert loss(C + size * step) > lowest
    gradient = torch.autograd.functional.jacobian(loss, C)
    assert float(gradient.abs().max()) < 1e-13


def test_rounding_in_the_symmetry_of_a_correlation_is_averaged() -> None:
    R = symmetric(0, 30, 5)
    uneven = R + 1e-9 * normal(1, 5, 5).triu(1)
    wanted = inverse_formula((uneven + uneven.mT) / 2, 3.0)
    C = Conceptor.from_correlation(uneven, 3.0)
    assert distance(C, wanted) < 1e-13
    assert distance(C.adapt(1.0), wanted) < 1e-13
    M = wanted + 1e-9 * normal(1, 5, 5).triu(1)
    assert distance(Conceptor.from_matrix(M), (M + M.mT) / 2) < 1e-13


def test_tiny_conceptors_keep_their_relative_accuracy() -> None:
    R = 1e-20 * symmetric(0, 30, 4)
    C = Conceptor.from_correlation(R, 1.0)
    torch.testing.assert_close(C.matrix(), R, rtol=1e-12, atol=0)  # C -> α² R
    torch.testing.assert_close(C.quota, R.trace() / 4)


# --- precision ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 400])
@pytest.mark.parametrize("aperture", [1.0, 270.0])
def test_float32_is_close_to_float64(count: int, aperture: float) -> None:
    X = wide_states(2, count, 60, 6).float()
    C, wanted = Conceptor.from_states(X, aperture), Conceptor.from_states(X.double(), aperture)
    assert C.dtype == torch.float32
    assert C.matrix().dtype == C.singular_values.dtype == C.quota.dtype == torch.float32
    assert distance(C, wanted) < 5e-7
    torch.testing.assert_close(
        C.singular_values.double(), wanted.singular_values, atol=2e-7, rtol=0
    )
    torch.testing.assert_close(C.quota.double(), wanted.quota, atol=2e-7, rtol=0)
    assert distance((~C), (~wanted)) < 5e-7


@pytest.mark.parametrize("form", ["lazy", "spectral"])
def test_float32_logic_is_close_to_float64_at_a_large_aperture(form: str) -> None:
    """Singular values from 1e-7 to 1 - 1e-6: neither end may be rounded off visibly."""
    A, B, A64, B64 = (
        Conceptor.from_states(wide_states(seed, 300, 100, 6).to(dtype), 270.0)
        for dtype in (torch.float32, torch.float64)
        for seed in (3, 5)
    )
    if form == "spectral":
        A, B = A.adapt(1.0), B.adapt(1.0)
    assert distance(A | B, A64 | B64) < 5e-5
    assert distance(A & B, A64 & B64) < 5e-5
    torch.testing.assert_close(similarity(A, B).double(), similarity(A64, B64), rtol=1e-5, atol=0)


@pytest.mark.parametrize("aperture", [30.0, 270.0, 2700.0, 1e5])
def test_rounding_in_a_float32_correlation_gives_no_negative_singular_values(
    aperture: float,
) -> None:
    """R rounded to float32 has eigenvalues below zero; at a large aperture they must not show."""
    X = 10 * wide_states(7, 500, 60, 6)
    R = (X.mT @ X / 500).float()
    assert float(torch.linalg.eigvalsh(R.double())[0]) < -1e-9
    C = Conceptor.from_correlation(R, aperture)
    found = torch.linalg.eigvalsh(C.matrix().double())
    assert float(found.min()) > -1e-6
    assert float(found.max()) < 1 + 1e-6
    torch.testing.assert_close(C.singular_values.double(), found.flip(0), atol=2e-6, rtol=0)


@pytest.mark.parametrize("aperture", [1e4, 1e8, 1e12])
def test_matrix_and_singular_values_agree_at_huge_apertures(aperture: float) -> None:
    """Rank 3 of 6: rounding of α² R must not pass for data in the empty directions."""
    X = normal(0, 40, 3) @ normal(1, 3, 6)
    C = Conceptor.from_states(X, aperture)
    found = torch.linalg.eigvalsh(C.matrix()).flip(0)
    torch.testing.assert_close(found, C.singular_values, atol=1e-7, rtol=0)
    torch.testing.assert_close(
        found, torch.tensor([1.0, 1, 1, 0, 0, 0]).double(), atol=1e-6, rtol=0
    )


# --- ways to make one --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_arrays_are_taken(dtype: type[np.floating]) -> None:
    X = normal(0, 9, 4).numpy().astype(dtype)
    C = Conceptor.from_states(X, 2.0)  # type: ignore[arg-type]
    wanted = Conceptor.from_states(torch.tensor(X), 2.0)
    assert C.dtype == wanted.dtype
    assert distance(C, wanted) == 0
    X[:] = 0  # the conceptor has its own copy
    assert distance(C, wanted) == 0
    x = np.ones(4, dtype=dtype)
    torch.testing.assert_close(C @ x, C @ torch.tensor(x))
    torch.testing.assert_close(C.evidence(x), C.evidence(torch.tensor(x)))  # type: ignore[arg-type]
    R = np.cov(normal(0, 9, 4).numpy().T).astype(dtype)
    Conceptor.from_correlation(R, 2.0)  # type: ignore[arg-type]
    assert distance(Conceptor.from_matrix(C.matrix().numpy()), C) < 1e-6  # type: ignore[arg-type]


def test_from_matrix_and_back() -> None:
    C = Conceptor.from_states(normal(0, 30, 5), 1.5)
    again = Conceptor.from_matrix(C.matrix())
    assert distance(C, again) < 1e-14
    assert again.aperture is None
    torch.testing.assert_close(again.singular_values, C.singular_values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_projector_given_as_a_matrix_is_exactly_hard(dtype: torch.dtype) -> None:
    """Rounding must not pass for data: the range of a projector of rank 4 has rank 4."""
    U = rotation(0, 30)[:, :4]
    C = Conceptor.from_matrix((U @ U.mT).to(dtype))
    hard = torch.zeros(30, dtype=dtype)
    hard[:4] = 1
    for same_thing in (C, C.adapt(math.inf), C.adapt(0), C.adapt(1e-3), ~~C):
        assert torch.equal(same_thing.singular_values, hard)
        assert distance(same_thing, U @ U.mT) < 1e-6


def test_from_spectrum_is_its_formula() -> None:
    U, s = rotation(0, 6)[:, :3], torch.tensor([1.0, 0.25, 0.0]).double()
    C, D = Conceptor.from_spectrum(U, s), Conceptor.from_spectrum(U, s, rest=1.0, aperture=2.0)
    assert same(C, (U * s) @ U.mT, 1e-14)
    assert same(D, (U * s) @ U.mT + eye(6) - U @ U.mT, 1e-14)
    assert C.singular_values.tolist() == [1, 0.25, 0, 0, 0, 0]
    assert D.singular_values.tolist() == [1, 1, 1, 1, 0.25, 0]
    assert (C.aperture, D.aperture) == (None, 2.0)
    vectors, found, rest = D.spectrum
    assert torch.allclose(vectors, U, rtol=0, atol=1e-15)
    assert (found.tolist(), rest) == (s.tolist(), 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nearly_orthonormal_columns_are_made_so(dtype: torch.dtype) -> None:
    """Off by somewhat less than what is refused: the result is a projector to rounding."""
    off = 0.2 * math.sqrt(torch.finfo(dtype).eps)
    U = (rotation(0, 8)[:, :3] + off * rotation(1, 8)[:, :3]).to(dtype)
    C = Conceptor.from_spectrum(U, torch.ones(3, dtype=dtype))
    P = C.matrix().double()
    assert distance(P @ P, P) < 8 * torch.finfo(dtype).eps


def test_columns_of_float32_are_made_orthonormal_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that settings like TF32, which round products of float32, change nothing."""
    seen = []

    def noted(vectors: Tensor) -> Tensor:
        seen.append(vectors.dtype)
        return orthonormalised(vectors)

    monkeypatch.setattr("conceptors.algebra.spectrum.orthonormalised", noted)
    U = torch.linalg.qr(normal(0, 40, 20).float()).Q
    C = Conceptor.from_spectrum(U, torch.full((20,), 0.5))
    assert C.dtype == torch.float32
    assert seen[0] == torch.float64


def test_from_conceptor() -> None:
    X = normal(0, 12, 4)
    C = Conceptor.from_states(X, 2.0)
    assert Conceptor.from_conceptor(C) is C
    D = Conceptor.from_conceptor(C, aperture=7.0)
    assert distance(D, Conceptor.from_states(X, 7.0)) < 1e-12
    assert D.aperture == pytest.approx(7.0, rel=1e-15)
    assert distance(Conceptor.from_conceptor(C | C, 7.0), D | D) < 1e-12
    assert distance(Conceptor.from_conceptor(C, math.inf), eye(4)) < 1e-12
    batch = Conceptor.from_states(normal(0, 2, 12, 4), 2.0)
    assert (
        distance(
            Conceptor.from_conceptor(batch, 5.0), Conceptor.from_states(normal(0, 2, 12, 4), 5.0)
        )
        < 1e-12
    )
    mixed = Conceptor.from_states(normal(0, 2, 12, 4), torch.tensor([1.0, 2.0]))
    for unknown, word in (
        (~C, "adapt"),
        (C & C, "adapt"),
        (C.harden(), "adapt"),
        (mixed, "differ"),
    ):
        with pytest.raises(ValueError, match=word):
            Conceptor.from_conceptor(unknown, 3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_and_identity(dtype: torch.dtype) -> None:
    zero, identity = Conceptor.zero(5, dtype=dtype), Conceptor.identity(5, dtype=dtype)
    assert torch.equal(zero.matrix(), torch.zeros(5, 5, dtype=dtype))
    assert torch.equal(identity.matrix(), torch.eye(5, dtype=dtype))
    assert (float(zero.quota), float(identity.quota)) == (0, 1)
    assert (zero.rank, identity.rank, zero.dtype) == (0, 0, dtype)
    x = torch.arange(5, dtype=dtype)
    assert torch.equal(zero @ x, torch.zeros_like(x))
    assert torch.equal(identity @ x, x)
    assert torch.equal(zero.truncation_errors(), torch.zeros(1, dtype=dtype))
    assert zero.factored().rank == zero.factored(rank=3).rank == 0
    assert torch.equal(zero.dense().matrix(), zero.matrix())
    assert torch.equal(identity.dense().matrix(), identity.matrix())


def test_aperture_is_known_where_it_has_a_meaning() -> None:
    A, B = Conceptor.from_states(normal(0, 9, 3), 2.0), Conceptor.from_states(normal(1, 9, 3), 2.0)
    other = Conceptor.from_states(normal(1, 9, 3), 3.0)
    assert (A | B).aperture == 2.0
    assert A.adapt(4.0).aperture == 8.0
    assert A.factored(rank=1).aperture == A.factored(rank=1).dense().aperture == 2.0
    for unknown in (~A, A & B, A | other, A.harden(), A.adapt(0), A.adapt(math.inf)):
        assert unknown.aperture is None


# --- acting on vectors -------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 20], ids=["factored", "dense"])
@pytest.mark.parametrize("negated", [False, True])
def test_projection_is_the_product_with_the_matrix(count: int, negated: bool) -> None:
    C = Conceptor.from_states(normal(0, 2, 3, count, 5), 2.0)
    C = ~C if negated else C
    for shape in ((5,), (4, 5), (3, 4, 5), (2, 3, 4, 5), (2, 1, 4, 5), (7, 2, 3, 4, 5)):
        x = normal(1, *shape)
        wanted = x @ C.matrix()
        torch.testing.assert_close(C @ x, wanted)
        torch.testing.assert_close(C.evidence(x), (wanted * x).sum(-1))
    one = C[1, 2]
    for shape in ((5,), (4, 5), (2, 3, 4, 5), (0, 5)):
        x = normal(1, *shape)
        torch.testing.assert_close(one @ x, x @ one.matrix())


@pytest.mark.parametrize("count", [2, 20], ids=["factored", "dense"])
def test_gradients_flow_through_to_the_vector(count: int) -> None:
    C = Conceptor.from_states(normal(0, count, 5).requires_grad_(), 2.0)
    for conceptor in (C, ~C, C | C):
        x = normal(1, 3, 5).requires_grad_()
        y = normal(2, 3, 5)
        ((conceptor @ x) * y).sum().backward()
        torch.testing.assert_close(x.grad, y @ conceptor.matrix())
        assert torch.autograd.gradcheck(lambda v, c=conceptor: c @ v, x)
        assert not conceptor.matrix().requires_grad  # the conceptor itself is a constant
