"""Second moments of a stream: any split, any order, weights, merging, saved and resumed."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Conceptor, Correlation
from helpers import distance, generator, normal


def moments(X: Tensor) -> Tensor:
    return X.mT @ X / len(X)


def state(R: Correlation) -> tuple[Any, ...]:
    return R.sum.tolist(), R.weight, R.count


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 6), st.data())
def test_any_split_into_batches_gives_the_same(seed: int, count: int, dim: int, data: Any) -> None:
    scales = 10.0 ** (3 * normal(seed, dim))
    X = normal(seed + 1, count, dim) * scales
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=6)))
    R = Correlation(dim)
    for part in X.tensor_split(cuts):
        assert R.update(part) is R
    wanted = moments(X)
    assert (R.count, R.weight) == (count, count)
    assert float((R.matrix() - wanted).norm() / wanted.norm()) < 1e-10
    torch.testing.assert_close(R.matrix(), wanted, rtol=1e-10, atol=1e-12 * float(wanted.max()))
    assert torch.equal(R.matrix(), R.matrix().mT)


@given(st.integers(0, 10**6), st.integers(1, 12), st.data())
def test_weights_are_repetitions(seed: int, count: int, data: Any) -> None:
    times = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    X = normal(seed, count, 3)
    repeats = torch.tensor(times)
    if sum(times):
        weighted = Correlation(3).update(X, repeats.double())
        wanted = moments(X.repeat_interleave(repeats, 0))
        torch.testing.assert_close(weighted.matrix(), wanted, rtol=1e-10, atol=1e-12)
        assert weighted.weight == sum(times)
        assert weighted.count == count


def test_weights_need_not_be_whole_or_of_the_same_dtype() -> None:
    X, w = normal(0, 8, 3).float(), normal(1, 8).exp()
    wanted = (X.double().mT * w) @ X.double() / w.sum()
    torch.testing.assert_close(Correlation(3).update(X, w).matrix(), wanted, rtol=1e-12, atol=1e-14)
    halves = Correlation(3).update(X[:4], w[:4]).update(X[4:], w[4:])
    torch.testing.assert_close(halves.matrix(), wanted, rtol=1e-12, atol=1e-14)
    scaled = Correlation(3).update(X, 1e-9 * w)
    torch.testing.assert_close(scaled.matrix(), wanted, rtol=1e-12, atol=1e-14)


def test_leading_dimensions_are_samples_too() -> None:
    X, w = normal(0, 2, 5, 4, 3), normal(1, 2, 5, 4).exp()
    flat = Correlation(3).update(X.reshape(-1, 3), w.reshape(-1))
    R = Correlation(3).update(X, w)
    torch.testing.assert_close(R.matrix(), flat.matrix())
    assert R.count == 40


@given(st.integers(0, 10**6), st.permutations(range(4)))
def test_merging_is_associative_and_commutative(seed: int, order: list[int]) -> None:
    parts = [normal(seed + i, i + 1, 3) for i in range(4)]

    def fresh() -> list[Correlation]:
        return [Correlation(3).update(part) for part in parts]

    left, right, turned = fresh(), fresh(), fresh()
    for other in left[1:]:
        left[0].merge(other)
    right[2].merge(right[3])
    right[1].merge(right[2])
    right[0].merge(right[1])
    first = turned[order[0]]
    for i in order[1:]:
        first.merge(turned[i])
    wanted = moments(torch.cat(parts))
    for found in (left[0], right[0], first):
        torch.testing.assert_close(found.matrix(), wanted, rtol=1e-10, atol=1e-12)
        assert (found.count, found.weight) == (10, 10)


def test_merging_leaves_the_other_alone() -> None:
    A, B = Correlation(3).update(normal(0, 5, 3)), Correlation(3).update(normal(1, 5, 3))
    before = state(B)
    A.merge(B).update(normal(2, 5, 3))
    assert state(B) == before


def test_float32_samples_are_added_in_float64() -> None:
    """Many small numbers beside a large one: sums in float32 would lose all of them."""
    X = torch.full((2000, 1), 1e-3)
    R = Correlation(1).update(torch.tensor([[1e3]]))
    for part in X.split(100):
        R.update(part)
    assert R.sum.dtype == torch.float64
    wanted = 1e6 + 2000 * float(torch.tensor(1e-3)) ** 2
    assert float(R.sum) == pytest.approx(wanted, rel=0, abs=1e-7)
    assert R.matrix().dtype == torch.float64
    narrow = Correlation(2, dtype=torch.float32).update(normal(0, 5, 2))
    assert narrow.matrix().dtype == torch.float32


def test_numpy_samples() -> None:
    X = normal(0, 6, 3)
    R = Correlation(3).update(X.numpy())  # type: ignore[arg-type]
    torch.testing.assert_close(R.matrix(), moments(X))
    R = Correlation(3).update(X.numpy().astype(np.float32), np.ones(6))  # type: ignore[arg-type]
    torch.testing.assert_close(R.matrix(), moments(X.float().double()))


def test_its_conceptor_is_that_of_the_samples() -> None:
    X = normal(0, 30, 4)
    R = Correlation(4)
    for part in X.split(7):
        R.update(part)
    assert distance(R.conceptor(2.0), Conceptor.from_states(X, 2.0)) < 1e-12
    assert R.conceptor(2.0).aperture == 2.0


def test_the_samples_and_the_sum_are_not_shared() -> None:
    X = normal(0, 5, 3).requires_grad_()
    R = Correlation(3).update(X)
    before = R.matrix()
    R.matrix().zero_()
    R.state_dict()["sum"].zero_()
    X.data.zero_()
    assert torch.equal(R.matrix(), before)
    assert not R.sum.requires_grad


@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy", "torch"])
def test_a_saved_state_goes_on_where_it_was(how: str, tmp_path: Any) -> None:
    X = normal(0, 20, 4)
    whole = Correlation(4).update(X)
    half = Correlation(4).update(X[:9], torch.ones(9))
    if how == "state_dict":
        again = Correlation(4)
        again.load_state_dict(half.state_dict())
    elif how == "torch":
        torch.save(half.state_dict(), tmp_path / "state.pt")
        again = Correlation(4)
        again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    else:
        again = copy.deepcopy(half) if how == "deepcopy" else pickle.loads(pickle.dumps(half))
    assert torch.equal(again.matrix(), half.matrix())
    assert (again.count, again.weight) == (half.count, half.weight)
    again.update(X[9:])
    torch.testing.assert_close(again.matrix(), whole.matrix(), rtol=1e-12, atol=1e-14)
    assert half.count == 9  # the one it came from did not move


# --- what is refused leaves everything as it was -----------------------------------------


def poisoned(value: float) -> Tensor:
    X = normal(0, 5, 3)
    X[3, 1] = value
    return X


@pytest.mark.parametrize(
    ("samples", "weights", "message"),
    [
        (poisoned(float("nan")), None, r"1 NaN or infinite entries, the first at \(3, 1\)"),
        (poisoned(float("-inf")), None, "remove or impute"),
        (poisoned(1e200), None, "overflow"),
        (normal(0, 5, 3), torch.full((5,), -1.0), "must not be negative, got -1"),
        (normal(0, 5, 3), torch.full((5,), float("nan")), "weights of shape"),
        (normal(0, 5, 3), torch.full((5,), 1e308, dtype=torch.float64), "overflow"),
        (normal(0, 5, 3), torch.ones(4), r"weights of shape \[4\]"),
        (normal(0, 5, 4), None, r"\[\.\.\., n, 3\], got \[5, 4\]"),
        (normal(0, 3), None, r"samples\[None\]"),
    ],
)
def test_a_bad_batch_changes_nothing(samples: Tensor, weights: Any, message: str) -> None:
    R = Correlation(3).update(normal(1, 4, 3))
    before = state(R)
    with pytest.raises(ValueError, match=message):
        R.update(samples, weights)
    assert state(R) == before


def test_an_overflowing_merge_changes_nothing() -> None:
    A, B = (Correlation(2).update(torch.full((1, 2), 6e153, dtype=torch.float64)) for _ in "ab")
    before = state(A)
    with pytest.raises(ValueError, match="overflow"):
        A.merge(B)
    assert state(A) == before
    assert bool(A.matrix().isfinite().all())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"sum": torch.eye(3).double()}, ValueError, r"\[3, 3\].*dimension 2"),
        ({"sum": torch.tensor([[1.0, 2], [0, 1]])}, ValueError, "not symmetric"),
        ({"sum": torch.tensor([[1.0, 2], [2, 1]])}, ValueError, "not positive semi-definite"),
        ({"sum": torch.full((2, 2), float("nan"))}, ValueError, "NaN"),
        ({"sum": torch.eye(2)[None]}, ValueError, r"\[1, 2, 2\]"),
        ({"sum": [[1.0]]}, TypeError, "list"),
        ({"weight": -1.0}, ValueError, "weight"),
        ({"weight": float("inf")}, ValueError, "weight"),
        ({"count": 1.5}, TypeError, "count"),
        ({"count": -1}, ValueError, "count"),
    ],
)
def test_a_bad_state_changes_nothing(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    R = Correlation(2).update(normal(0, 5, 2))
    before = state(R)
    with pytest.raises(error, match=message):
        R.load_state_dict({**R.state_dict(), **change})
    assert state(R) == before


@pytest.mark.parametrize("bad", [{}, {"sum": torch.eye(2)}, [1, 2], None])
def test_what_is_no_state_is_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="sum, weight and count"):
        Correlation(2).load_state_dict(bad)


def test_merging_nonsense_is_refused() -> None:
    R = Correlation(2)
    with pytest.raises(ValueError, match="itself"):
        R.merge(R)
    with pytest.raises(ValueError, match="dimension 3 into 2"):
        R.merge(Correlation(3))
    with pytest.raises(TypeError, match="int"):
        R.merge(3)  # type: ignore[arg-type]


def test_an_empty_batch_changes_nothing_and_no_samples_are_no_matrix() -> None:
    R = Correlation(3).update(torch.zeros(0, 3)).update(torch.zeros(2, 0, 3))
    assert (R.count, R.weight) == (0, 0)
    for unknown in (R.matrix, lambda: R.conceptor(1.0)):
        with pytest.raises(ValueError, match=r"no samples.*update"):
            unknown()
    R.update(normal(0, 4, 3), torch.zeros(4))
    with pytest.raises(ValueError, match="positive weight"):
        R.matrix()


def test_all_reduce_alone_changes_nothing() -> None:
    R = Correlation(3).update(normal(0, 4, 3))
    before = state(R)
    assert R.all_reduce() is R
    assert state(R) == before


def test_repr() -> None:
    shuffled = torch.randperm(6, generator=generator(0)).double()[:, None]
    assert repr(Correlation(1).update(shuffled)) == "Correlation(dim=1, count=6, weight=6)"
