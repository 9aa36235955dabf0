"""The value: closed forms, precision, constructors, products, batches, immutability."""

import copy
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from conceptors import Conceptor, similarity
from helpers import distance, eye, inverse_formula, normal, rotation, same, symmetric, wide_states

APERTURES = [0.05, 1.0, 4.0, 270.0]


@pytest.mark.parametrize("aperture", APERTURES)
def test_states_and_correlation_give_the_closed_form(aperture: float) -> None:
    X = wide_states(0, 60, 9, 1)
    R = X.mT @ X / 60
    wanted, sigma = inverse_formula(R, aperture), torch.linalg.eigvalsh(R).flip(0)
    s = sigma / (sigma + aperture**-2)
    for C in (Conceptor.from_states(X, aperture), Conceptor.from_correlation(R, aperture)):
        assert distance(C, wanted) < 1e-12
        assert C.dtype == torch.float64
        assert (C.dim, C.rank, C.batch_shape, C.is_factored) == (9, 9, torch.Size([]), False)
        torch.testing.assert_close(C.quota, s.mean(), rtol=1e-11, atol=0)  # by the matrix
        torch.testing.assert_close(C.singular_values, s, rtol=1e-9, atol=0)
        torch.testing.assert_close(C.odds_trace(), aperture**2 * R.trace())
        assert distance(C.adapt(1.0), wanted) < 1e-10  # the same, by the spectrum


def test_fewer_samples_than_dimensions_give_the_factored_form() -> None:
    X = normal(0, 3, 8)
    C = Conceptor.from_states(X, 2.0)
    assert (C.is_factored, C.rank, C.dim) == (True, 3, 8)
    assert distance(C, inverse_formula(X.mT @ X / 3, 2.0)) < 1e-13
    assert distance(C.dense(), C) < 1e-13
    assert not C.dense().is_factored
    assert C.dense().top_k().rank == 3


@pytest.mark.parametrize("count", [20, 400])
@pytest.mark.parametrize("aperture", [1.0, 270.0])
def test_float32_is_close_to_float64(count: int, aperture: float) -> None:
    X = wide_states(2, count, 60, 6).float()
    C, wanted = Conceptor.from_states(X, aperture), Conceptor.from_states(X.double(), aperture)
    assert C.matrix().dtype == C.singular_values.dtype == C.quota.dtype == torch.float32
    assert distance(C, wanted) < 5e-7
    assert distance(~C, ~wanted) < 5e-7
    for value, exact in ((C.singular_values, wanted.singular_values), (C.quota, wanted.quota)):
        torch.testing.assert_close(value.double(), exact, atol=2e-7, rtol=0)
    assert distance(C.to(torch.float64), wanted) < (1e-12 if count == 400 else 5e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_arrays_are_accepted(dtype: type[np.floating]) -> None:
    X = normal(0, 9, 4).numpy().astype(dtype)
    C = Conceptor.from_states(X, 2.0)  # type: ignore[arg-type]
    wanted = Conceptor.from_states(torch.tensor(X), 2.0)
    X[:] = 0  # the conceptor has its own copy
    assert C.dtype == wanted.dtype
    assert distance(C, wanted) == 0
    x = np.ones(4, dtype=dtype)
    torch.testing.assert_close(C @ x, C @ torch.tensor(x))
    assert distance(Conceptor.from_matrix(C.matrix().numpy()), C) < 1e-6  # type: ignore[arg-type]


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
    C, D = Conceptor.from_spectrum(U, s), Conceptor.from_spectrum(U, s, rest=1.0)
    assert same(C, (U * s) @ U.mT, 1e-14)
    assert same(D, (U * s) @ U.mT + eye(6) - U @ U.mT, 1e-14)
    assert C.singular_values.tolist() == [1, 0.25, 0, 0, 0, 0]
    assert D.singular_values.tolist() == [1, 1, 1, 1, 0.25, 0]
    vectors, values, rest = D.spectrum
    assert torch.allclose(vectors, U, rtol=0, atol=1e-15)
    assert (values.tolist(), rest) == (s.tolist(), 1.0)


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
        x, y = normal(1, 3, 5).requires_grad_(), normal(2, 3, 5)
        ((conceptor @ x) * y).sum().backward()
        torch.testing.assert_close(x.grad, y @ conceptor.matrix())
        assert not conceptor.matrix().requires_grad  # the conceptor itself is a constant


OPERATIONS: dict[str, Callable[[Conceptor, Conceptor], Tensor]] = {
    "matrix": lambda a, b: a.matrix(),
    "not": lambda a, b: (~a).matrix(),
    "or": lambda a, b: (a | b).matrix(),
    "and": lambda a, b: (a & b).matrix(),
    "adapt": lambda a, b: a.adapt(3.0).matrix(),
    "harden": lambda a, b: a.harden(0.4).matrix(),
    "order": lambda a, b: a <= (a | b),
    "similarity": similarity,
    "quota": lambda a, b: a.quota,
    "singular values": lambda a, b: a.singular_values,
    "factored": lambda a, b: a.top_k(2).dense().matrix(),
    "matmul": lambda a, b: a @ torch.ones(a.dim, dtype=a.dtype),
}


@pytest.mark.parametrize("count", [2, 20], ids=["factored", "dense"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_batch_is_its_members_one_by_one_and_broadcasts(name: str, count: int) -> None:
    X, Y = normal(0, 3, 1, count, 6), normal(1, 4, count, 6)
    A, B = Conceptor.from_states(X.expand(3, 4, count, 6), 2.0), Conceptor.from_states(Y, 2.0)
    assert A.batch_shape == (3, 4)
    result = OPERATIONS[name](A, B)
    for i in range(3):
        for j in range(4):
            a, b = Conceptor.from_states(X[i, 0], 2.0), Conceptor.from_states(Y[j], 2.0)
            for one in (OPERATIONS[name](a, b), OPERATIONS[name](A[i, j], B[j])):
                torch.testing.assert_close(result[i, j], one, atol=1e-9, rtol=0)


def test_one_aperture_for_each_member() -> None:
    X, apertures = normal(0, 2, 3, 10, 4), torch.tensor([0.5, 2.0, 50.0], dtype=torch.float64)
    C = Conceptor.from_states(X, apertures)
    for i in range(2):
        for j in range(3):
            one = Conceptor.from_states(X[i, j], float(apertures[j]))
            assert distance(C[i, j], one) < 1e-12


def test_members_of_very_different_size_do_not_disturb_each_other() -> None:
    R = torch.stack([1e12 * symmetric(0, 9, 3), 1e-12 * symmetric(1, 9, 3), symmetric(2, 9, 3)])
    C = Conceptor.from_correlation(R, 1.0)
    for i in range(3):
        one = Conceptor.from_correlation(R[i], 1.0)
        torch.testing.assert_close(C[i].matrix(), one.matrix(), rtol=1e-7, atol=1e-18)
        torch.testing.assert_close(C[i].singular_values, one.singular_values, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rank", [0, 2, 5])
def test_indexing(rank: int) -> None:
    U = torch.stack([rotation(i, 5)[:, :rank] for i in range(6)]).reshape(2, 3, 5, rank)
    C = Conceptor.from_spectrum(U, normal(0, 2, 3, rank).sigmoid())
    M, mask = C.matrix(), torch.tensor([True, False])
    for index in (0, (1, 2), slice(1, 2), (slice(None), 0), ..., None, mask, [1, 0], (-1, [0, 2])):
        torch.testing.assert_close(C[index].matrix(), M[index], atol=1e-15, rtol=0)
        assert C[index].batch_shape == M[index].shape[:-2]
    with pytest.raises(IndexError):
        C[2]
    with pytest.raises(IndexError, match="selects nothing"):
        C[0:0]
    with pytest.raises(IndexError, match="not a batch"):
        C[0, 0][0]


@pytest.mark.parametrize("rank", [0, 2, 4])
def test_results_can_be_changed_freely(rank: int) -> None:
    C = Conceptor.from_states(normal(0, 9, 4), 2.0)
    C = C.top_k(rank) if rank < 4 else C
    before, x = C.matrix(), normal(1, 3, 4)
    for read in (
        C.matrix,
        lambda: C.singular_values,
        lambda: C.quota,
        lambda: C.spectrum[0],
        lambda: C.spectrum[1],
        lambda: C @ x.clone(),
        (~C).matrix,
        (C | C).matrix,
        lambda: C.dense() >= C,
    ):
        read().zero_()
        assert torch.equal(C.matrix(), before)
    (~C @ x).zero_()
    assert torch.equal(x, normal(1, 3, 4))  # not a view of the argument either


def test_attributes_cannot_be_set_or_deleted() -> None:
    C = Conceptor.zero(3)
    with pytest.raises(AttributeError, match="cannot assign to field 'form'"):
        C.form = C.form  # type: ignore[misc]
    with pytest.raises(AttributeError, match="cannot delete field 'form'"):
        del C.form
    with pytest.raises(TypeError, match="from_states"):
        Conceptor(torch.eye(3))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda C: pickle.loads(pickle.dumps(C))])
@pytest.mark.parametrize("count", [2, 20])
def test_copies_and_pickles(again: Callable[[Conceptor], Conceptor], count: int) -> None:
    batch = Conceptor.from_states(normal(0, 2, count, 4), torch.tensor([1.0, 2.0]))
    single = Conceptor.from_states(normal(0, count, 4).float(), 2.0)
    assert float(single.singular_values.sum()) > 0
    for C in (batch, single, ~batch, ~single, batch[0], Conceptor.zero(4)):
        D = again(C)
        assert torch.equal(C.matrix(), D.matrix())
        assert (D.rank, repr(D)) == (C.rank, repr(C))
        assert distance(C | C, D | D) == 0
