"""The forms of a value, its dtypes and devices, and that it never changes."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from helpers import distance, inverse_formula, normal, rotation, symmetric, wide_states

# --- forms -------------------------------------------------------------------------------


def test_fewer_samples_than_dimensions_give_the_factored_form() -> None:
    X = normal(0, 3, 8)
    C = Conceptor.from_states(X, 2.0)
    assert (C.is_factored, C.rank, C.dim) == (True, 3, 8)
    assert distance(C, inverse_formula(X.mT @ X / 3, 2.0)) < 1e-13
    assert distance(C.dense(), C) < 1e-13
    assert not C.dense().is_factored
    assert C.dense().aperture == 2.0
    assert distance(C.dense().factored(), C) < 1e-13
    assert C.dense().factored().rank == 3


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_to_other_dtypes_and_devices(name: str) -> None:
    dtype = getattr(torch, name)
    X = wide_states(0, 30, 6, 3)
    for C in (Conceptor.from_states(X, 9.0), Conceptor.from_states(X[:3], 9.0)):
        for read_before in (False, True):
            if read_before:
                assert C.singular_values.dtype == torch.float64
            for D in (
                C.to(dtype=dtype),
                C.to(dtype),
                C.to("cpu", dtype),
                C.to("cpu").to(dtype=dtype),
            ):
                assert D.dtype == D.matrix().dtype == D.singular_values.dtype == dtype
                assert distance(D, C) < 1e-6
                assert D.aperture == 9.0
                assert (D @ torch.ones(6, dtype=dtype)).dtype == dtype
                assert distance(D.to(torch.float64), C) < 1e-6
        assert C.to() is not C
        assert distance(C.to(), C) == 0


@pytest.mark.parametrize("read_before", [False, True])
def test_widening_uses_what_is_held_in_full_precision(read_before: bool) -> None:
    """Samples in float32 have exact second moments in float64, read before or not."""
    X = wide_states(0, 30, 6, 3).float()
    C = Conceptor.from_states(X, 9.0)
    if read_before:
        assert C.singular_values.dtype == torch.float32
    wanted = Conceptor.from_states(X.double(), 9.0)
    assert distance(C.to(torch.float64), wanted) < 1e-12
    assert distance(~C.to(torch.float64), ~wanted) < 1e-10


def test_an_aperture_that_the_narrower_dtype_cannot_hold_is_forgotten() -> None:
    C = Conceptor.from_states(1e60 * normal(0, 3, 5), 1e-60)
    assert C.to(torch.float32).aperture is None
    assert distance(C.to(torch.float32), C) < 1e-6


def test_a_float32_conceptor_widened_is_orthonormal_in_float64() -> None:
    U = rotation(0, 50)[:, :5].float()
    C = Conceptor.from_spectrum(U, torch.ones(5)).to(torch.float64)
    P = C.matrix()
    assert distance(P @ P, P) < 1e-14
    assert torch.equal((C & C).singular_values, C.singular_values)
    assert (C & C).rank == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_keeps_exact_zeros_and_ones(dtype: torch.dtype) -> None:
    U = rotation(0, 40)[:, :4].to(dtype)
    s = torch.tensor([1.0, 1.0, 0.0, 0.3], dtype=dtype)
    for C in (Conceptor.from_spectrum(U, s), ~Conceptor.from_spectrum(U, s)):
        D = C.dense()
        assert torch.equal(D.singular_values, C.singular_values)
        for gamma in (0, 1e-4, 1e4, math.inf):
            assert torch.equal(D.adapt(gamma).singular_values, C.adapt(gamma).singular_values)
        assert distance(D, C) < 20 * torch.finfo(dtype).eps


def test_dense_of_a_padded_batch() -> None:
    """After OR, members have different ranks; zero columns fill the smaller ones up."""
    U = rotation(0, 9)
    A = Conceptor.from_spectrum(torch.stack([U[:, :2], U[:, :2]]), torch.ones(2, 2).double())
    B = Conceptor.from_spectrum(torch.stack([U[:, :2], U[:, 2:4]]), torch.ones(2, 2).double())
    C = A | B
    assert C.rank == 4
    for padded in (C, ~C, C[0], ~C[0]):
        D = padded.dense()
        assert distance(D, padded) < 1e-13
        assert torch.equal(D.singular_values, padded.singular_values)
        assert distance(D | D, padded | padded) < 1e-12
    assert C.quota.tolist() == pytest.approx([2 / 9, 4 / 9])


# --- an immutable value ------------------------------------------------------------------


def check_unchanged(C: Conceptor, before: Tensor) -> None:
    assert torch.equal(C.matrix(), before)
    again = Conceptor.from_matrix(before) if not C.batch_shape else None
    if again is not None:
        torch.testing.assert_close(C.singular_values, again.singular_values, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rank", [0, 2, 4])
def test_what_it_returns_can_be_changed_freely(rank: int) -> None:
    C = Conceptor.from_states(normal(0, 9, 4), 2.0)
    C = C.factored(rank=rank) if rank < 4 else C
    before = C.matrix()
    x = normal(1, 3, 4)
    for read in (
        C.matrix,
        lambda: C.singular_values,
        lambda: C.quota,
        lambda: C.spectrum[0],
        lambda: C.spectrum[1],
        C.truncation_errors,
        lambda: C @ x.clone(),
        lambda: C.evidence(x),
        (~C).matrix,
        (C | C).matrix,
        lambda: C.dense() >= C,
    ):
        read().zero_()
        check_unchanged(C, before)
    (~C @ x).zero_()
    assert torch.equal(x, normal(1, 3, 4))  # not a view of the argument either


def test_the_aperture_read_from_a_batch_is_a_copy() -> None:
    C = Conceptor.from_states(normal(0, 2, 3, 4), 2.0)
    assert isinstance(C.aperture, Tensor)
    C.aperture.zero_()
    assert C.aperture.tolist() == [2.0, 2.0]


def test_arguments_can_be_changed_afterwards() -> None:
    X, R, apertures = normal(0, 2, 9, 4), symmetric(1, 2, 9, 4), torch.tensor([1.0, 2.0]).double()
    U = torch.stack([rotation(0, 4), rotation(1, 4)])
    s = normal(2, 2, 4).sigmoid()
    M = (U * s[:, None]) @ U.mT
    found = [
        Conceptor.from_states(X, apertures),
        Conceptor.from_states(X[:, :2], apertures),
        Conceptor.from_correlation(R, apertures),
        Conceptor.from_matrix(M),
        Conceptor.from_spectrum(U, s, aperture=apertures),  # type: ignore[arg-type]
        Conceptor.from_spectrum(U[..., :2], s[..., :2]),
    ]
    lazy = copy.deepcopy(found)
    for tensor in (X, R, apertures, U, s, M):
        tensor.fill_(7.0)
    for C, kept in zip(found, lazy):
        assert torch.equal(C.matrix(), kept.matrix())
        assert str(C.aperture) == str(kept.aperture)
    assert str(found[0].aperture) == str(torch.tensor([1.0, 2.0]).double())


def test_attributes_cannot_be_set_or_deleted() -> None:
    C = Conceptor.zero(3)
    for name in ("dim", "_dtype", "anything"):
        with pytest.raises(AttributeError, match="never changes"):
            setattr(C, name, 1)
        with pytest.raises(AttributeError, match="never changes"):
            delattr(C, name)
    with pytest.raises(TypeError, match="from_states"):
        Conceptor(torch.eye(3))


@pytest.mark.parametrize(
    "again",
    [copy.deepcopy, copy.copy, lambda C: pickle.loads(pickle.dumps(C))],
    ids=["deepcopy", "copy", "pickle"],
)
@pytest.mark.parametrize("count", [2, 20])
def test_copies_and_pickles(again: Callable[[Conceptor], Conceptor], count: int) -> None:
    lazy = Conceptor.from_states(normal(0, 2, count, 4), torch.tensor([1.0, 2.0]))
    read = Conceptor.from_states(normal(0, count, 4).float(), 2.0)
    assert float(read.singular_values.sum()) > 0
    for C in (lazy, read, ~lazy, ~read, lazy[0], Conceptor.zero(4)):
        D = again(C)
        assert torch.equal(C.matrix(), D.matrix())
        assert (D.dtype, D.rank, D.batch_shape, repr(D)) == (
            C.dtype,
            C.rank,
            C.batch_shape,
            repr(C),
        )
        assert str(D.aperture) == str(C.aperture)
        assert distance(C | C, D | D) == 0


def test_repr_names_what_matters() -> None:
    C = Conceptor.from_states(normal(0, 2, 3, 4), 2.5)
    assert repr(C[0]).startswith("Conceptor(dim=4, rank=3, quota=0.")
    assert "aperture=2.5" in repr(C[0])
    assert "batch=[2]" in repr(C)
    assert "float64" in repr(C)
    assert "aperture" not in repr(~C)


def test_allclose() -> None:
    C = Conceptor.from_states(normal(0, 9, 4), 2.0)
    D = Conceptor.from_matrix(C.matrix() * (1 - 1e-5))
    assert C.allclose(C.dense())
    assert not C.allclose(D)
    assert C.allclose(D, atol=1e-4)


def test_a_known_quota_goes_along_with_copies_and_members() -> None:
    states = torch.randn(3, 20, 6, generator=torch.Generator().manual_seed(0))
    C, other = (Conceptor.from_states(states, 2.0) for _ in range(2))
    quotas = C.quota
    for known, fresh in ((C.to("cpu"), other.to("cpu")), (C[1], other[1]), (C[:2], other[:2])):
        torch.testing.assert_close(known.quota, fresh.quota)
    assert C[1].quota == quotas[1]
