"""Batches of conceptors do what their members do one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor, similarity
from helpers import distance, normal, rotation, symmetric

OPERATIONS: dict[str, Callable[[Conceptor, Conceptor], Tensor]] = {
    "matrix": lambda a, b: a.matrix(),
    "not": lambda a, b: (~a).matrix(),
    "or": lambda a, b: (a | b).matrix(),
    "and": lambda a, b: (a & b).matrix(),
    "or-not": lambda a, b: (a | ~b).matrix(),
    "adapt": lambda a, b: a.adapt(3.0).matrix(),
    "harden": lambda a, b: a.harden(0.4).matrix(),
    "order": lambda a, b: a <= (a | b),
    "disorder": lambda a, b: (a | b) <= a,
    "similarity": similarity,
    "quota": lambda a, b: a.quota,
    "singular values": lambda a, b: a.singular_values,
    "dense": lambda a, b: a.dense().matrix(),
    "factored": lambda a, b: a.factored(rank=2).matrix(),
    "matmul": lambda a, b: a @ torch.ones(a.dim, dtype=a.dtype),
    "evidence": lambda a, b: a.evidence(torch.arange(a.dim).to(a.dtype)),
}


@pytest.mark.parametrize("count", [2, 20], ids=["factored", "dense"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_batch_is_the_same_as_its_members_one_by_one(name: str, count: int) -> None:
    X, Y = normal(0, 2, 3, count, 6), normal(1, 2, 3, count, 6)
    A, B = Conceptor.from_states(X, 2.0), Conceptor.from_states(Y, 2.0)
    assert A.batch_shape == (2, 3)
    found = OPERATIONS[name](A, B)
    for i in range(2):
        for j in range(3):
            a, b = Conceptor.from_states(X[i, j], 2.0), Conceptor.from_states(Y[i, j], 2.0)
            torch.testing.assert_close(found[i, j], OPERATIONS[name](a, b), atol=1e-9, rtol=0)
            torch.testing.assert_close(
                found[i, j], OPERATIONS[name](A[i, j], B[i, j]), atol=1e-9, rtol=0
            )


@pytest.mark.parametrize("count", [2, 20], ids=["factored", "dense"])
@pytest.mark.parametrize("name", ["or", "and", "order", "disorder", "similarity", "or-not"])
def test_batches_broadcast(name: str, count: int) -> None:
    X, Y = normal(0, 3, 1, count, 6), normal(1, 4, count, 6)
    A, B = Conceptor.from_states(X, 2.0), Conceptor.from_states(Y, 2.0)
    found = OPERATIONS[name](A, B)
    assert found.shape[:2] == (3, 4)
    for i in range(3):
        for j in range(4):
            one = OPERATIONS[name](A[i, 0], B[j])
            torch.testing.assert_close(found[i, j], one, atol=1e-9, rtol=0)
    single = OPERATIONS[name](A[1, 0], B)
    torch.testing.assert_close(single[2], OPERATIONS[name](A[1, 0], B[2]), atol=1e-9, rtol=0)


def test_one_aperture_for_each_member() -> None:
    X = normal(0, 3, 10, 4)
    apertures = torch.tensor([0.5, 2.0, 50.0], dtype=torch.float64)
    R = X.mT @ X / 10
    for C in (Conceptor.from_states(X, apertures), Conceptor.from_correlation(R, apertures)):
        for i in range(3):
            one = Conceptor.from_states(X[i], float(apertures[i]))
            assert distance(C[i], one) < 1e-12
            assert C[i].aperture == float(apertures[i])
        assert isinstance(C.aperture, Tensor)
        torch.testing.assert_close(C.aperture, apertures)


def test_aperture_tensors_broadcast_over_the_batch() -> None:
    X = normal(0, 2, 3, 8, 4)
    apertures = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    C = Conceptor.from_states(X, apertures)
    for i in range(2):
        for j in range(3):
            assert distance(C[i, j], Conceptor.from_states(X[i, j], float(apertures[j]))) < 1e-12
    assert Conceptor.from_states(X, torch.tensor(3)).aperture is not None
    assert distance(Conceptor.from_states(X, torch.tensor(3)), Conceptor.from_states(X, 3.0)) == 0


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
    s = normal(0, 2, 3, rank).sigmoid()
    C = Conceptor.from_spectrum(U, s, aperture=3.0)
    M = C.matrix()
    assert C[1].batch_shape == (3,)
    assert C[1, 2].batch_shape == ()
    mask = torch.tensor([True, False])
    for index in (0, (1, 2), slice(1, 2), (slice(None), 0), ..., None, mask, [1, 0], (-1, [0, 2])):
        torch.testing.assert_close(C[index].matrix(), M[index], atol=1e-15, rtol=0)
        assert C[index].batch_shape == M[index].shape[:-2]
    assert C[0, 0].aperture == 3.0
    with pytest.raises(IndexError):
        C[2]
    with pytest.raises(IndexError, match="selects nothing"):
        C[0:0]
    with pytest.raises(IndexError, match="not a batch"):
        C[0, 0][0]
