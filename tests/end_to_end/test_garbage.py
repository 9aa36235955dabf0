"""Anything at all thrown at every public function: a valid result, or ValueError or TypeError."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import (
    Conceptor,
    Correlation,
    FrequentDirections,
    aperture_by_validation,
    aperture_for_quota,
    similarity,
)
from helpers import normal

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, math.nan, math.inf, 1e-320, 1e-160, 1e-30, 1e30, 1e160]
TINY_TO_HUGE = [1e-300, 1e-150, 1e-40, 1e-20, 1e-8, 1e-3, 1.0, 1e3, 1e8, 1e20, 1e40, 1e150, 1e300]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any shape, any dtype, any values; square and symmetric more often than by chance."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64] * 4 + DTYPES))
    count = math.prod(shape)
    finite = draw(st.booleans())
    pool = [v for v in SPECIAL if math.isfinite(v)] if finite else SPECIAL
    x = torch.tensor(draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count)))
    x = torch.as_tensor(x, dtype=torch.float64).reshape(shape)
    if len(shape) > 1 and draw(st.booleans()):
        x = x[..., : min(shape[-2:]), : min(shape[-2:])]
        x = x + x.mT
    if dtype in (torch.int64, torch.bool):
        x = x.nan_to_num(0).clamp(-9, 9)
    return x.to(dtype)


@st.composite
def plausible(draw: st.DrawFn) -> Tensor:
    """Float samples `[..., n, d]` of any scale, rank and grading."""
    count, dim = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    batch = draw(st.sampled_from([(), (), (2,)]))
    x = normal(draw(st.integers(0, 999)), *batch, count, dim)
    kept = draw(st.integers(0, count))
    x[..., kept:, :] = x[..., :1, :] if kept else 0.0  # repeated rows, or none
    grading = torch.tensor(
        draw(st.lists(st.sampled_from(TINY_TO_HUGE), min_size=dim, max_size=dim))
    )
    if draw(st.booleans()):
        x = x * grading.double()
    x = x * draw(st.sampled_from(TINY_TO_HUGE))
    return x.to(draw(st.sampled_from([torch.float32, torch.float64])))


NUMBERS = st.one_of(
    st.sampled_from(
        [*SPECIAL, *TINY_TO_HUGE, 10**400, 3, True, None, "1", 1j, [1.0], np.float32(2)]
    ),
    tensors(),
)


def attempt(call: Callable[[], Any]) -> Any:
    """The result, or None where the call refuses."""
    try:
        return call()
    except (ValueError, TypeError):
        return None


def check(C: Conceptor) -> None:
    """A conceptor that keeps what it promises."""
    M, s = C.matrix(), C.singular_values
    assert bool(M.isfinite().all())
    loose = 1e-4 if C.dtype == torch.float32 else 1e-6
    assert bool(((s >= 0) & (s <= 1)).all())
    assert bool(((C.quota >= 0) & (C.quota <= 1)).all())
    assert bool(((C.quota - s.mean(-1)).abs() <= loose).all())
    found = torch.linalg.eigvalsh(M.double()).flip(-1)
    assert float((found - s.double()).abs().max()) < loose
    assert M.dtype == s.dtype == C.dtype
    assert repr(C)


def check_all(C: Conceptor) -> None:
    """And so does everything made from it."""
    check(C)
    made: list[Callable[[], Conceptor]] = [
        lambda: ~C,
        lambda: C | C,
        lambda: C & C,
        lambda: C | ~C,
        lambda: C & ~C,
        lambda: C.adapt(1e-3),
        lambda: C.adapt(1e100),
        lambda: C.adapt(math.inf),
        C.harden,
        lambda: C.factored(rank=0),
        lambda: C.factored(tolerance=0.1),
        C.dense,
        lambda: C.to(torch.float32),
        lambda: C.to(torch.float64),
        lambda: Conceptor.from_matrix(C.matrix()),
    ]
    for make in made:
        check(make())
    rho = similarity(C, C.dense())
    assert bool(((rho == 0) | (rho == 1)).all())
    assert bool((C <= (C | C)).all())
    x = torch.ones(C.dim, dtype=C.dtype)
    assert bool((C @ x).isfinite().all())
    assert bool((C.evidence(x) >= -1e-3).all())


@given(tensors(), NUMBERS)
def test_states(x: Tensor, aperture: Any) -> None:
    C = attempt(lambda: Conceptor.from_states(x, aperture))
    if C is not None:
        check_all(C)


@given(plausible(), st.sampled_from(TINY_TO_HUGE))
def test_plausible_states(x: Tensor, aperture: float) -> None:
    C = attempt(lambda: Conceptor.from_states(x, aperture))
    if C is not None:
        check_all(C)


@given(tensors(), NUMBERS)
def test_correlation(x: Tensor, aperture: Any) -> None:
    C = attempt(lambda: Conceptor.from_correlation(x, aperture))
    if C is not None:
        check_all(C)


@given(plausible(), st.sampled_from(TINY_TO_HUGE))
def test_plausible_correlation(x: Tensor, aperture: float) -> None:
    """Rounded to float32, R has negative eigenvalues, which must not matter."""
    C = attempt(lambda: Conceptor.from_correlation(x.mT @ x, aperture))
    if C is not None:
        check_all(C)


@given(tensors())
def test_matrix(x: Tensor) -> None:
    C = attempt(lambda: Conceptor.from_matrix(x))
    if C is not None:
        check_all(C)


@given(tensors(), tensors(), NUMBERS, NUMBERS)
def test_spectrum(x: Tensor, y: Tensor, rest: Any, aperture: Any) -> None:
    C = attempt(lambda: Conceptor.from_spectrum(x, y, rest=rest, aperture=aperture))
    if C is not None:
        check_all(C)


@given(plausible(), st.sampled_from([0.0, 1.0]), st.integers(0, 999))
def test_plausible_spectrum(x: Tensor, rest: float, seed: int) -> None:
    U = torch.linalg.qr(x.nan_to_num(0, 0, 0).mT).Q
    s = normal(seed, *U.shape[:-2], U.shape[-1]).to(U).mul(9).sigmoid()
    C = attempt(lambda: Conceptor.from_spectrum(U, s, rest=rest))
    if C is not None:
        check_all(C)


@given(plausible(), plausible(), st.sampled_from(TINY_TO_HUGE))
def test_pairs(x: Tensor, y: Tensor, aperture: float) -> None:
    A = attempt(lambda: Conceptor.from_states(x, aperture))
    B = attempt(lambda: Conceptor.from_states(y, 1.0))
    if A is not None and B is not None:
        for join in (lambda: A | B, lambda: A & B, lambda: A & ~B, lambda: ~A | B):
            C = attempt(join)
            if C is not None:
                check(C)
        rho = attempt(lambda: similarity(A, B))
        if rho is not None:
            assert bool(((rho >= 0) & (rho <= 1)).all())
            assert (A <= B).dtype == torch.bool


@given(NUMBERS, st.sampled_from(["adapt", "harden", "rank", "tolerance", "atol", "index"]))
def test_methods(value: Any, name: str) -> None:
    for C in (
        Conceptor.from_states(normal(0, 9, 3), 2.0),
        Conceptor.from_states(normal(0, 2, 2, 3).float(), 2.0),
    ):
        calls: dict[str, Callable[[], Any]] = {
            "adapt": partial(C.adapt, value),
            "harden": partial(C.harden, value),
            "rank": partial(C.factored, rank=value),
            "tolerance": partial(C.factored, tolerance=value),
            "atol": partial(C.allclose, C, atol=value),
            "index": partial(indexed, C, value),
        }
        found = attempt(calls[name])
        if isinstance(found, Conceptor):
            check(found)


def indexed(C: Conceptor, value: Any) -> Conceptor | None:
    try:
        return C[value]
    except IndexError:  # what Python calls it
        return None


@given(tensors())
def test_projection(x: Tensor) -> None:
    """NaN passes through a projection, as through any product; nothing else makes one."""
    for C in (
        Conceptor.from_states(normal(0, 9, 3).to(x.dtype), 2.0)
        if x.dtype.is_floating_point and x.dtype.itemsize > 2
        else Conceptor.zero(3),
        Conceptor.identity(3),
        Conceptor.from_states(normal(0, 4, 2, 3), 2.0),
    ):
        y = attempt(partial(C.__matmul__, x))
        if y is not None and bool(x.isfinite().all()) and float(x.abs().sum()) < 1e30:
            assert bool(y.isfinite().all())
            assert float(y.norm()) <= 2 * float(x.norm()) * len(C.matrix()) + 1e-30
        attempt(partial(C.evidence, x))


@given(
    st.lists(
        st.tuples(st.one_of(tensors(), plausible()), st.one_of(st.none(), tensors())), max_size=4
    )
)
def test_streams(batches: list[tuple[Tensor, Tensor | None]]) -> None:
    for dim in (1, 3):
        for stream in (Correlation(dim), FrequentDirections(dim, 1), FrequentDirections(dim, dim)):
            for x, weights in batches:
                attempt(partial(stream.update, x, weights))
                attempt(partial(stream.update, x))
            assert repr(stream)
            C = attempt(partial(stream.conceptor, 1.0))
            if C is not None:
                check(C)
            if isinstance(stream, FrequentDirections):
                assert 0 <= stream.error_bound < math.inf
                assert 0 <= stream.conceptor_error_bound(1e3) <= 1


@given(st.one_of(tensors(), plausible().map(lambda x: x.mT @ x)), NUMBERS)
def test_apertures(R: Tensor, quota: Any) -> None:
    for alpha in (
        attempt(lambda: aperture_for_quota(R, quota)),
        attempt(lambda: aperture_for_quota(R, 0.3)),
    ):
        if alpha is not None:
            assert 0 < alpha < math.inf
            C = attempt(partial(Conceptor.from_correlation, R, alpha))
            if C is not None:
                check(C)


@given(st.one_of(tensors(), plausible()), st.lists(NUMBERS, max_size=3), NUMBERS, NUMBERS)
def test_validation(x: Tensor, apertures: list[Any], folds: Any, seed: Any) -> None:
    def quota(C: Conceptor, _: Tensor) -> float:
        return float(C.quota.mean())

    for chosen in (
        attempt(lambda: aperture_by_validation(x, quota, apertures, folds=folds, seed=seed)),
        attempt(lambda: aperture_by_validation(x, quota, folds=2)),
    ):
        if chosen is not None:
            assert 0 < chosen < math.inf
