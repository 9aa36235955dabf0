"""Exact and sketched second moments: any split, weights, merging, bounds, processes, refusals."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Conceptor, Correlation, FrequentDirections
from helpers import distance, largest_tensor, normal, rotation

Sums = Correlation | FrequentDirections


def second_moment(X: Tensor) -> Tensor:
    return X.mT @ X / len(X)


def spread(seed: int, count: int, dim: int, power: float) -> Tensor:
    """Rows whose standard deviations fall as i^-power in random directions."""
    scales = torch.arange(1, dim + 1, dtype=torch.float64) ** -power
    return normal(seed, count, dim) * scales @ rotation(seed + 1, dim)


@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 6), st.data())
def test_any_split_and_merge_gives_the_same(seed: int, count: int, dim: int, data: Any) -> None:
    X = normal(seed + 1, count, dim) * 10.0 ** (3 * normal(seed, dim))
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=6)))
    R, merged = Correlation(dim), Correlation(dim)
    for part in X.tensor_split(cuts):
        assert R.update(part) is R
        merged.merge(Correlation(dim).update(part))
    wanted = second_moment(X)
    for sums in (R, merged):
        assert (sums.count, sums.weight) == (count, count)
        torch.testing.assert_close(
            sums.matrix(), wanted, rtol=1e-10, atol=1e-12 * float(wanted.max())
        )
    assert torch.equal(R.matrix(), R.matrix().mT)


@pytest.mark.parametrize("kind", ["exact", "sketch"])
def test_weights_are_repetitions(kind: str) -> None:
    X, times = normal(0, 6, 9).float(), torch.tensor([1, 2, 0, 3, 1, 4])
    one, two = (Correlation(9) if kind == "exact" else FrequentDirections(9, 6) for _ in range(2))
    for x, weight in zip(X, times.tolist()):
        one.update(x[None, None], weight)
    C = one.conceptor(2.0)
    D = two.update(X.repeat_interleave(times, 0)).conceptor(2.0)
    assert distance(C, D) < 1e-12
    assert distance(C, Conceptor.from_states(X.double().repeat_interleave(times, 0), 2.0)) < 1e-12
    assert (one.weight, one.count, two.count) == (11, 6, 11)


def test_float32_samples_are_added_in_float64() -> None:
    """Many small numbers beside a large one: sums in float32 would lose all of them."""
    R = Correlation(1).update(torch.tensor([[1e3]]))
    for part in torch.full((2000, 1), 1e-3).split(100):
        R.update(part)
    wanted = 1e6 + 2000 * float(torch.tensor(1e-3)) ** 2
    assert float(R.sum) == pytest.approx(wanted, rel=0, abs=1e-7)


def test_groups_side_by_side_and_finished_sums() -> None:
    X, w = normal(0, 3, 8, 4), torch.tensor([0.5] * 5 + [2.0] * 3).double()
    grouped, total = Correlation(4, groups=3), Correlation(4, groups=3)
    grouped.update(X[:, :5], 0.5).update(X[:, 5:], 2.0)
    total.add((X.mT * w) @ X, float(w.sum()), 8)
    assert grouped.conceptor(2.0).batch_shape == (3,)
    for i in range(3):
        one = Correlation(4).update(X[i, :5], 0.5).update(X[i, 5:], 2.0).matrix()
        torch.testing.assert_close(grouped.matrix()[i], one)
        torch.testing.assert_close(total.merge(Correlation(4, groups=3)).matrix()[i], one)
    with pytest.raises(ValueError, match=r"\[3, n, 4\], got \[8, 4\]"):
        grouped.update(X[0])
    with pytest.raises(ValueError, match="groups"):
        grouped.merge(Correlation(4))


def check_bounds(sketch: FrequentDirections, R: Tensor, aperture: float = 2.0) -> None:
    """0 <= R - R̂ <= Δ I, Δ below the tail bound for every k, and the same for conceptors."""
    rows = sketch.rows()
    assert len(rows) <= sketch.rank
    rounding = 1e-12 * float(R.trace())
    gap = torch.linalg.eigvalsh(R - rows.mT @ rows)
    assert -rounding < float(gap.min()) <= float(gap.max()) <= sketch.error_bound + rounding
    sigma = torch.linalg.eigvalsh(R).clamp_min(0).flip(0)
    for k in range(sketch.rank + 1):
        assert sketch.error_bound <= float(sigma[k:].sum()) / (sketch.rank + 1 - k) + rounding
    exact, C = Conceptor.from_correlation(R, aperture), sketch.conceptor(aperture)
    gap = torch.linalg.eigvalsh(exact.matrix() - C.matrix())
    assert float(gap.min()) > -1e-9
    assert float(gap.max()) <= sketch.error_bound / (sketch.error_bound + aperture**-2) + 1e-9


@given(
    st.integers(0, 10**6), st.integers(1, 90), st.integers(2, 14), st.floats(0, 3),
    st.integers(1, 40), st.data(),
)  # fmt: skip
def test_bounds(seed: int, count: int, dim: int, power: float, size: int, data: Any) -> None:
    rank, X = data.draw(st.integers(1, dim)), spread(seed, count, dim, power)
    w = torch.ones(count).double()
    sketch, other = FrequentDirections(dim, rank), FrequentDirections(dim, rank)
    for start in range(0, count, size):
        part, weight = X[start : start + size], 1.0 + start
        w[start : start + size] = weight
        sketch.update(part, weight)
        other.merge(FrequentDirections(dim, rank).update(part, weight))
    for sums in (sketch, other):
        check_bounds(sums, (X.mT * w) @ X / w.sum())
        assert sums.count == count


def test_memory_is_that_of_two_times_rank_rows() -> None:
    """At d = 50 000 and rank 10, batches of 16: nothing above a few d · rank numbers appears."""
    dim, rank = 50_000, 10
    parts = [normal(seed, 16, dim) for seed in range(4)]

    def work() -> None:
        sketch = FrequentDirections(dim, rank)
        for part in parts:
            sketch.update(part)
        sketch.merge(FrequentDirections(dim, rank).update(parts[0]))
        assert sketch.error_bound > 0
        assert sketch.conceptor(2.0).rank == rank

    assert largest_tensor(work) <= 2.5 * dim * rank


@pytest.mark.parametrize("make", [Correlation, lambda dim: FrequentDirections(dim, 1)])
def test_what_is_refused_changes_nothing(make: Any) -> None:
    sums: Sums = make(3).update(normal(1, 4, 3))
    before = (repr(sums), sums.weight, str(sums.conceptor(1.0).matrix()))
    with pytest.raises(ValueError, match="overflow"):
        sums.update(torch.full((2, 3), 1e200, dtype=torch.float64))
    with pytest.raises(ValueError, match="overflow"):
        sums.update(normal(0, 5, 3), 1e308)
    with pytest.raises(ValueError, match="itself"):
        sums.merge(sums)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dimension 4 into 3"):
        sums.merge(make(4))
    with pytest.raises(TypeError, match="int"):
        sums.merge(3)  # type: ignore[arg-type]
    assert sums.update(torch.zeros(0, 3)).all_reduce() is sums
    assert (repr(sums), sums.weight, str(sums.conceptor(1.0).matrix())) == before
    for empty in (make(3), make(3).update(normal(0, 4, 3), 0.0)):
        with pytest.raises(ValueError, match=r"no samples of positive weight.*update"):
            empty.conceptor(1.0)
