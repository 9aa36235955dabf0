"""AND and OR against 60-digit arithmetic, at the extremes."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from algebra.sixty_digits import conjoined, disjoined, distance, draw, is_clear, of_states
from conceptors import Conceptor
from helpers import normal

FEW, MANY = range(110), range(2106)
BOUNDS = {  # of AND and OR, in the Frobenius norm
    torch.float64: (1.4e-8, 2e-10),
    torch.float32: (1e-5, 1e-5),
}


def worst(seeds: range, dtype: torch.dtype) -> tuple[float, float]:
    """The largest errors of AND and OR over all draws that have one answer."""
    errors = []
    for seed in seeds:
        A, B = draw(seed, dtype)
        if is_clear(A, B):
            found = distance(A & B, conjoined(A, B)), distance(A | B, disjoined(A, B))
            errors.append(found)
    assert len(errors) > 0.98 * len(seeds)
    return max(e for e, _ in errors), max(e for _, e in errors)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_and_and_or_at_the_extremes(dtype: torch.dtype) -> None:
    errors = worst(FEW, dtype)
    assert errors[0] < BOUNDS[dtype][0]
    assert errors[1] < BOUNDS[dtype][1]


@pytest.mark.soak
@pytest.mark.parametrize("dtype", BOUNDS)
def test_and_and_or_at_many_extremes(dtype: torch.dtype) -> None:
    errors = worst(MANY, dtype)
    print(f"{dtype}: AND {errors[0]:.1e}, OR {errors[1]:.1e}")
    assert errors[0] < BOUNDS[dtype][0]
    assert errors[1] < BOUNDS[dtype][1]


def test_the_draws_are_extreme() -> None:
    """All forms and dimensions; singular values near and at 0 and 1, and repeated ones."""
    seen: Counter[str] = Counter()
    for seed in FEW:
        for C in draw(seed, torch.float64):
            seen[f"dim {C.dim}"] += 1
            seen[type(C.form).__name__] += 1
            seen["factored"] += C.is_factored and not C.spectrum[2]
            seen["negated"] += C.is_factored and C.spectrum[2] == 1
            odds = C.form.spectrum().odds
            for name, some in {
                "tiny": (odds > 0) & (odds < 1e-10),
                "nearly full": (odds > 1e10) & ~odds.isinf(),
                "zero": odds == 0,
                "full": odds.isinf(),
                "repeated": (odds[:, None] == odds).sum(-1) > 1,
            }.items():
                seen[name] += bool(some.any())
    assert len(seen) == 6 + 2 + 2 + 5
    assert min(seen.values()) >= 10, seen


def test_the_reference_knows_simple_cases() -> None:
    """Odds 1 and 1 give 1/3 and 2/3; hard ones the lattice of subspaces."""
    half = Conceptor.from_matrix(torch.tensor([[0.5]]).double())
    assert float(conjoined(half, half)[0, 0]) == pytest.approx(1 / 3, abs=1e-15)
    assert float(disjoined(half, half)[0, 0]) == pytest.approx(2 / 3, abs=1e-15)
    zero, full = Conceptor.zero(1), Conceptor.identity(1)
    assert float(conjoined(full, half)[0, 0]) == pytest.approx(1 / 2, abs=1e-15)
    assert float(disjoined(zero, half)[0, 0]) == pytest.approx(1 / 2, abs=1e-15)
    assert float(disjoined(zero, full)[0, 0]) == pytest.approx(1, abs=1e-15)


DECADES = (0, 4, 7, 8, 9, 12)


@pytest.mark.parametrize("decades", DECADES)
@pytest.mark.parametrize("count", [40, 4])
@pytest.mark.parametrize("kind", ["column", "timestamp", "rows"])
def test_states_of_very_different_scales(kind: str, count: int, decades: int) -> None:
    X, scale = normal(3, count, 6), 10.0**decades
    if kind == "column":
        X[:, 0] *= scale
    elif kind == "rows":
        X[:2] *= scale
    else:  # nearly constant, beside the constant column of a bias
        X[:, 0], X[:, 1] = scale * (1 + 1e-4 * X[:, 0]), 1.0
    C, wanted = Conceptor.from_states(X, 3.0), of_states((X, 3.0))
    vectors, values, _ = C.dense().spectrum
    assert distance(C, wanted) < 1e-9
    assert distance(Conceptor.from_matrix((vectors * values) @ vectors.mT), wanted) < 1e-9


@pytest.mark.parametrize("decades", DECADES)
@pytest.mark.parametrize("count", [40, 4])
def test_or_with_a_much_larger_conceptor(count: int, decades: int) -> None:
    X, Y = normal(1, count, 6), normal(2, count, 2) @ normal(3, 2, 6) * 10.0**decades
    both = Conceptor.from_states(X, 3.0) | Conceptor.from_states(Y, 3.0)
    assert distance(both, of_states((X, 3.0), (Y, 3.0))) < 1e-6
