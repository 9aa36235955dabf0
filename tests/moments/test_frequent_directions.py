"""Frequent Directions: its bounds against exact matrices, and its memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Conceptor, Correlation, FrequentDirections
from helpers import distance, largest_tensor, normal, rotation


def spread(seed: int, count: int, dim: int, power: float) -> Tensor:
    """Rows whose standard deviations fall as i^-power in random directions."""
    scales = torch.arange(1, dim + 1, dtype=torch.float64) ** -power
    return normal(seed, count, dim) * scales @ rotation(seed + 1, dim)


def filled(X: Tensor, rank: int, size: int, weights: Tensor | None = None) -> FrequentDirections:
    sketch = FrequentDirections(X.shape[1], rank)
    for i in range(0, len(X), size):
        sketch.update(X[i : i + size], None if weights is None else weights[i : i + size])
    return sketch


def check_bounds(sketch: FrequentDirections, R: Tensor) -> None:
    """0 <= R - R̂ <= Δ I, and Δ below the tail bound for every k."""
    rows = sketch.rows()
    assert len(rows) <= sketch.rank
    rounding = 1e-12 * float(R.trace())
    gap = torch.linalg.eigvalsh(R - rows.mT @ rows)
    assert float(gap.min()) > -rounding
    assert float(gap.max()) <= sketch.error_bound + rounding
    sigma = torch.linalg.eigvalsh(R).clamp_min(0).flip(0)
    for k in range(sketch.rank + 1):
        assert sketch.error_bound <= float(sigma[k:].sum()) / (sketch.rank + 1 - k) + rounding


def check_conceptor(sketch: FrequentDirections, R: Tensor, aperture: float) -> None:
    """Its conceptor is that of R̂, below that of R, and within the stated distance."""
    C, exact = sketch.conceptor(aperture), Conceptor.from_correlation(R, aperture)
    rows = sketch.rows()
    assert distance(C, Conceptor.from_correlation(rows.mT @ rows, aperture)) < 1e-9
    gap = torch.linalg.eigvalsh(exact.matrix() - C.matrix())
    assert float(gap.min()) > -1e-9
    assert float(gap.max()) <= sketch.conceptor_error_bound(aperture) + 1e-9
    assert C.aperture == aperture


@given(
    st.integers(0, 10**6),
    st.integers(1, 90),
    st.integers(2, 14),
    st.floats(0, 3),
    st.integers(1, 40),
    st.data(),
)
def test_bounds(seed: int, count: int, dim: int, power: float, size: int, data: Any) -> None:
    rank = data.draw(st.integers(1, dim))
    X = spread(seed, count, dim, power)
    sketch = filled(X, rank, size)
    R = X.mT @ X / count
    check_bounds(sketch, R)
    check_conceptor(sketch, R, 2.0)
    assert (sketch.count, sketch.weight) == (count, count)


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_bounds_with_weights(seed: int, rank: int) -> None:
    X, w = spread(seed, 50, 8, 1.0), normal(seed, 50).exp()
    w[::7] = 0
    sketch = filled(X, rank, 9, w)
    R = (X.mT * w) @ X / w.sum()
    check_bounds(sketch, R)
    check_conceptor(sketch, R, 1.0)
    assert sketch.weight == pytest.approx(float(w.sum()))


def test_the_bound_is_close_to_what_happens() -> None:
    """Not only an upper bound: on flat data it is within a small factor of the error."""
    X = normal(0, 2000, 20)
    sketch = filled(X, 10, 50)
    R = X.mT @ X / 2000
    rows = sketch.rows()
    error = float(torch.linalg.matrix_norm(R - rows.mT @ rows, 2))
    assert error <= sketch.error_bound <= 1.5 * error


def test_nothing_is_lost_up_to_the_rank() -> None:
    X = normal(0, 200, 5) @ normal(1, 5, 40)
    sketch = filled(X, 5, 17)
    R = X.mT @ X / 200
    rows = sketch.rows()
    assert sketch.error_bound < 1e-12 * float(R.trace())
    assert distance(rows.mT @ rows, R) < 1e-10 * float(R.trace())
    assert distance(sketch.conceptor(3.0), Conceptor.from_states(X, 3.0)) < 1e-8


def test_few_rows_are_kept_as_they_are() -> None:
    X = normal(0, 3, 10)
    sketch = FrequentDirections(10, 4).update(X)
    assert sketch.error_bound == 0
    assert sketch.conceptor_error_bound(1e10) == 0
    torch.testing.assert_close(sketch.rows().mT @ sketch.rows(), X.mT @ X / 3)


def test_weights_are_repetitions() -> None:
    X, times = normal(0, 6, 9), torch.tensor([1, 2, 0, 3, 1, 4])
    one = FrequentDirections(9, 6).update(X.float(), times.double())
    two = FrequentDirections(9, 6).update(X.float().repeat_interleave(times, 0))
    a, b = one.rows(), two.rows()
    torch.testing.assert_close(a.mT @ a, b.mT @ b, rtol=1e-10, atol=1e-12)
    assert one.weight == two.weight == 11


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40))
def test_merging_keeps_the_bounds(seed: int, rank: int, first: int, second: int) -> None:
    X, Y = spread(seed, first, 9, 0.7), 3 * spread(seed + 5, second, 9, 0.7)
    A, B = filled(X, rank, 7), filled(Y, rank, 7)
    before = (B.rows(), B.error_bound, repr(B))
    assert A.merge(B) is A
    assert torch.equal(B.rows(), before[0])
    assert (B.error_bound, repr(B)) == before[1:]
    both = torch.cat([X, Y])
    R = both.mT @ both / len(both)
    check_bounds(A, R)
    check_conceptor(A, R, 1.0)
    assert A.count == first + second
    A.update(both)  # and it goes on
    check_bounds(A, R)


def test_merging_sketches_of_different_rank() -> None:
    X, Y = spread(0, 60, 9, 1.0), spread(2, 60, 9, 1.0)
    small = filled(X, 2, 10).merge(filled(Y, 7, 10))
    both = torch.cat([X, Y])
    check_bounds(small, both.mT @ both / 120)


def test_looking_changes_nothing() -> None:
    X = normal(0, 40, 8)
    looked_at, left_alone = FrequentDirections(8, 3), FrequentDirections(8, 3)
    for part in X.split(5):
        looked_at.update(part)
        left_alone.update(part)
        repr(looked_at)
        for _ in range(2):
            looked_at.rows().zero_()
            assert looked_at.error_bound >= 0
            looked_at.conceptor(2.0)
            looked_at.conceptor_error_bound(2.0)
            looked_at.all_reduce()  # without processes
    assert looked_at.error_bound == left_alone.error_bound
    assert torch.equal(looked_at.rows(), left_alone.rows())
    assert repr(looked_at) == repr(left_alone)
    assert repr(looked_at).startswith("FrequentDirections(dim=8, rank=3, count=40, error_bound=")


def test_copies_go_on_alone() -> None:
    sketch = filled(normal(0, 30, 6), 3, 7)
    again = copy.deepcopy(sketch)
    again.update(normal(1, 30, 6))
    assert sketch.count == 30
    assert not torch.equal(sketch.rows(), again.rows())


def test_samples_are_not_shared() -> None:
    X = normal(0, 2, 6).requires_grad_()
    sketch = FrequentDirections(6, 3).update(X)
    before = sketch.rows()
    X.data.zero_()
    assert torch.equal(sketch.rows(), before)
    assert not before.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_float32_input_and_sketch(dtype: torch.dtype) -> None:
    X = spread(0, 300, 30, 1.0).float()
    sketch = FrequentDirections(30, 8, dtype=dtype)
    for part in X.split(32):
        sketch.update(part)
    R = X.double().mT @ X.double() / 300
    rows = sketch.rows()
    assert rows.dtype == dtype
    gap = torch.linalg.eigvalsh(R - rows.double().mT @ rows.double())
    rounding = 1e-12 if dtype == torch.float64 else 1e-5
    assert float(gap.min()) > -rounding
    assert float(gap.max()) < sketch.error_bound + rounding


@pytest.mark.parametrize("aperture", [1e-3, 1.0, 1e3, 1e160])
def test_conceptor_error_bound_is_its_formula(aperture: float) -> None:
    sketch = filled(normal(0, 40, 8), 3, 5)
    odds = aperture**2 * sketch.error_bound if aperture < 1e100 else float("inf")
    wanted = 1.0 if odds == float("inf") else odds / (1 + odds)
    assert sketch.conceptor_error_bound(aperture) == pytest.approx(wanted, rel=1e-12)


# --- large -------------------------------------------------------------------------------


def test_bounds_at_four_thousand_dimensions() -> None:
    """d = 4096, rank 64, a decaying spectrum, against the exact second moments of the stream.

    The samples lie in 300 of the dimensions, so that R - R̂ acts in 364 only: its extreme
    eigenvalues are those of a small matrix, exactly.
    """
    dim, inner, rank, count, aperture = 4096, 300, 64, 1200, 3.0
    scales = torch.arange(1, inner + 1, dtype=torch.float64) ** -0.8
    directions = torch.linalg.qr(normal(0, dim, inner)).Q
    X = (normal(1, count, inner) * scales) @ directions.mT
    sketch = FrequentDirections(dim, rank)
    for part in X.split(100):
        sketch.update(part)
    rows = sketch.rows()
    assert rows.shape == (rank, dim)

    basis = torch.linalg.qr(torch.cat([directions, rows.mT], 1)).Q
    inside = X @ basis
    assert float((X - inside @ basis.mT).abs().max()) < 1e-12
    R, ours = inside.mT @ inside / count, (rows @ basis).mT @ (rows @ basis)
    gap = torch.linalg.eigvalsh(R - ours)
    assert float(gap.min()) > -1e-12
    assert float(gap.max()) <= sketch.error_bound + 1e-12

    sigma = torch.linalg.eigvalsh(R).clamp_min(0).flip(0)
    for k in (0, 1, 8, 32, 63, 64):
        assert sketch.error_bound <= float(sigma[k:].sum()) / (rank + 1 - k)
    assert 0 < sketch.error_bound < 0.05 * float(sigma[0])

    C = sketch.conceptor(aperture)
    assert (C.rank, C.dim) == (rank, dim)
    exact = Conceptor.from_correlation(R, aperture).matrix()
    error = torch.linalg.eigvalsh(exact - basis.mT @ (C @ basis.mT.contiguous()).mT)
    assert float(error.min()) > -1e-10
    assert float(error.max()) <= sketch.conceptor_error_bound(aperture) + 1e-10


def test_memory_is_that_of_two_times_rank_rows() -> None:
    """At d = 50 000 and rank 10, batches of 16: nothing above a few d · rank numbers appears."""
    dim, rank = 50_000, 10
    parts = [normal(seed, 16, dim) for seed in range(4)]

    def work() -> None:
        sketch = FrequentDirections(dim, rank)
        for part in parts:
            sketch.update(part)
        other = FrequentDirections(dim, rank).update(parts[0])
        sketch.merge(other)
        assert sketch.error_bound > 0
        assert repr(sketch)
        assert sketch.conceptor(2.0).rank == rank

    assert largest_tensor(work) <= 2.5 * dim * rank


# --- what is refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "weights", "message"),
    [
        (torch.tensor([[1.0, float("nan"), 0]]), None, r"NaN.*\(0, 1\)"),
        (torch.full((2, 3), 1e200, dtype=torch.float64), None, "overflow"),
        (torch.ones(2, 3), torch.tensor([1.0, -2.0]), "negative, got -2"),
        (torch.ones(2, 3), torch.ones(3), r"weights of shape \[3\]"),
        (torch.ones(2, 4), None, r"n, 3\], got \[2, 4\]"),
    ],
)
def test_a_bad_batch_changes_nothing(samples: Tensor, weights: Any, message: str) -> None:
    sketch = FrequentDirections(3, 1).update(normal(0, 2, 3))
    before = (sketch.rows(), repr(sketch), sketch.weight)
    with pytest.raises(ValueError, match=message):
        sketch.update(samples, weights)
    assert torch.equal(sketch.rows(), before[0])
    assert (repr(sketch), sketch.weight) == before[1:]


def test_an_overflowing_merge_changes_nothing() -> None:
    A, B = (
        FrequentDirections(2, 1).update(torch.full((1, 2), 6e153, dtype=torch.float64))
        for _ in "ab"
    )
    with pytest.raises(ValueError, match="overflow"):
        A.merge(B)
    assert A.count == 1


def test_merging_nonsense_is_refused() -> None:
    sketch = FrequentDirections(3, 1)
    with pytest.raises(ValueError, match="itself"):
        sketch.merge(sketch)
    with pytest.raises(ValueError, match="dimension 4 into 3"):
        sketch.merge(FrequentDirections(4, 1))
    with pytest.raises(TypeError, match="Correlation"):
        sketch.merge(Correlation(3))  # type: ignore[arg-type]


def test_no_samples_are_no_sketch() -> None:
    sketch = FrequentDirections(3, 2).update(torch.zeros(0, 3))
    assert sketch.error_bound == 0
    for unknown in (sketch.rows, lambda: sketch.conceptor(1.0)):
        with pytest.raises(ValueError, match=r"no samples.*update"):
            unknown()
    zero = FrequentDirections(3, 1).update(torch.zeros(5, 3))
    assert float(zero.conceptor(1.0).quota) == 0
