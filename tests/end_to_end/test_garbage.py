"""Anything at all thrown at the public functions: a valid result, or ValueError or TypeError."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
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
SCALES = [1e-300, 1e-150, 1e-40, 1e-20, 1e-8, 1e-3, 1.0, 1e3, 1e8, 1e20, 1e40, 1e150, 1e300]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any shape, any dtype, any values; square and symmetric more often than by chance."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.float64] * 4 + DTYPES))
    pool = [v for v in SPECIAL if math.isfinite(v)] if draw(st.booleans()) else SPECIAL
    x = torch.full(shape, 0.0, dtype=torch.float64)
    x = x.flatten().apply_(lambda _: draw(st.sampled_from(pool))).reshape(shape)
    if len(shape) > 1 and draw(st.booleans()):
        x = x[..., : min(shape[-2:]), : min(shape[-2:])]
        x = x + x.mT
    return (x if dtype.is_floating_point else x.nan_to_num(0).clamp(-9, 9)).to(dtype)


@st.composite
def samples(draw: st.DrawFn) -> Tensor:
    """Float samples `[..., n, d]` of any scale, rank and grading."""
    count, dim = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    x = normal(draw(st.integers(0, 999)), *draw(st.sampled_from([(), (2,)])), count, dim)
    distinct = draw(st.integers(0, count))
    x[..., distinct:, :] = x[..., :1, :] if distinct else 0.0
    if draw(st.booleans()):
        x = x * torch.tensor([draw(st.sampled_from(SCALES)) for _ in range(dim)]).double()
    x = x * draw(st.sampled_from(SCALES))
    return x.to(draw(st.sampled_from([torch.float32, torch.float64])))


ANY = [*SPECIAL, *SCALES, 10**400, 3, True, None, "1", 1j, [1.0], np.float32(2)]
NUMBERS = st.one_of(st.sampled_from(ANY), tensors())


def attempt(call: Callable[[], Any]) -> Any:
    """The result, or None if the call refuses."""
    try:
        return call()
    except (ValueError, TypeError):
        return None


def check(C: Conceptor | None) -> None:
    """A conceptor keeps its promises."""
    if C is None:
        return
    M, s = C.matrix(), C.singular_values
    loose = 1e-4 if C.dtype == torch.float32 else 1e-6
    assert bool(M.isfinite().all())
    assert bool(((s >= 0) & (s <= 1)).all())
    assert bool(((C.quota - s.mean(-1)).abs() <= loose).all())
    eigenvalues = torch.linalg.eigvalsh(M.double()).flip(-1)
    assert float((eigenvalues - s.double()).abs().max()) < loose
    assert M.dtype == s.dtype == C.dtype
    assert repr(C)


def check_all(C: Conceptor | None) -> None:
    """So does everything computed from it."""
    check(C)
    if C is not None:
        for result in (~C, C | C, C & C, C | ~C, C & ~C, C.harden(), C.to(torch.float32)):
            check(result)
        for gamma in (1e-3, 1e100, math.inf):
            check(C.adapt(gamma))
        rho = similarity(C, Conceptor.from_matrix(C.matrix()))
        assert bool(((rho == 0) | (rho > 0.99)).all())
        assert bool((C @ torch.ones(C.dim, dtype=C.dtype)).isfinite().all())


@given(tensors(), samples(), NUMBERS, st.sampled_from(SCALES))
def test_constructors(x: Tensor, rows: Tensor, aperture: Any, positive: float) -> None:
    check_all(attempt(lambda: Conceptor.from_states(x, aperture)))
    check_all(attempt(lambda: Conceptor.from_correlation(x, aperture)))
    check_all(attempt(lambda: Conceptor.from_matrix(x)))
    check_all(attempt(lambda: Conceptor.from_states(rows, positive)))
    # rounded to float32, this matrix has negative eigenvalues, which must not matter
    check_all(attempt(lambda: Conceptor.from_correlation(rows.mT @ rows, positive)))


@given(samples(), samples(), st.sampled_from(SCALES))
def test_pairs(x: Tensor, y: Tensor, aperture: float) -> None:
    A = attempt(lambda: Conceptor.from_states(x, aperture))
    B = attempt(lambda: Conceptor.from_states(y, 1.0))
    if A is not None and B is not None:
        for join in (lambda: A | B, lambda: A & B, lambda: A & ~B, lambda: ~A | B):
            check(attempt(join))
        rho = attempt(lambda: similarity(A, B))
        assert rho is None or bool(((rho >= 0) & (rho <= 1)).all())


@given(NUMBERS, st.one_of(tensors(), samples()), st.lists(NUMBERS, max_size=3))
def test_everything_else(value: Any, x: Tensor, values: list[Any]) -> None:
    for C in (Conceptor.from_states(normal(0, 9, 3), 2.0), Conceptor.identity(3)):
        check(attempt(partial(C.adapt, value)))
        check(attempt(partial(C.harden, value)))
        y = attempt(partial(C.__matmul__, x))  # NaN passes; nothing else makes one
        if y is not None and bool(x.isfinite().all()) and float(x.abs().sum()) < 1e30:
            assert bool(y.isfinite().all())
    for accumulator in (Correlation(3), FrequentDirections(3, 1)):
        attempt(partial(accumulator.update, x))
        check(attempt(partial(accumulator.conceptor, 1.0)))
    for aperture in (
        attempt(partial(aperture_for_quota, x, value)),
        attempt(partial(aperture_for_quota, x.mT @ x if x.ndim == 2 else x, 0.3)),
    ):
        assert aperture is None or 0 < aperture < math.inf
    attempt(partial(aperture_by_validation, x, lambda C, _: float(C.quota.mean()), values))


# Refusals name the value and the remedy.
DENSE = Conceptor.from_states(normal(0, 9, 3), 1.0)
FACTORED = Conceptor.from_states(normal(0, 2, 3), 1.0)


TENSORS: dict[str, Callable[[Any], object]] = {
    "from_states": lambda x: Conceptor.from_states(x, 1.0),
    "from_correlation": lambda x: Conceptor.from_correlation(x, 1.0),
    "from_matrix": Conceptor.from_matrix,
    "dense @": lambda x: DENSE @ x,
    "factored @": lambda x: FACTORED @ x,
    "Correlation.update": Correlation(3).update,
    "FrequentDirections.update": FrequentDirections(3, 1).update,
    "aperture_for_quota": lambda x: aperture_for_quota(x, 0.5),
    "aperture_by_validation": lambda x: aperture_by_validation(x, lambda *_: 0.0),
}
NOT_FLOATS: list[tuple[Any, str]] = [
    ([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]], "got list"),
    (torch.eye(3, dtype=torch.int64), r"got torch.int64 of shape \[3, 3\]"),
    (torch.eye(3).to_sparse(), "sparse_coo"),
    (np.array([[None]]), "got ndarray of dtype object"),
]
INDEFINITE = torch.tensor([[1.0, 2.0], [2.0, 1.0]]).double()
WRONG: list[tuple[str, torch.Tensor, str]] = [
    ("from_states", torch.ones(3), r"got \[3\].*states\[None\]"),
    ("from_correlation", torch.tensor([[1.0, 0.5], [0.4, 1.0]]), r"not symmetric.*differ by 0.1"),
    ("from_correlation", INDEFINITE, "not positive semi-definite.*eigenvalue is -1 "),
    ("from_matrix", 2 * torch.eye(2), r"from 2 to 2 where \[0, 1\].*from_correlation"),
    ("dense @", torch.ones(3, 2).double(), r"got \[3, 2\]"),
    ("Correlation.update", torch.ones(2, 4), r"got \[2, 4\]"),
    ("FrequentDirections.update", torch.ones(3), r"got \[3\].*samples\[None\]"),
    ("aperture_for_quota", torch.ones(2, 3), r"got \[2, 3\]"),
    ("aperture_by_validation", torch.ones(1, 3), "at least 2 rows, got 1"),
]


@pytest.mark.parametrize(("value", "message"), NOT_FLOATS)
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_must_be_dense_floats(name: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        TENSORS[name](value)
    assert re.search(r"torch\.as_tensor|\.float\(\)|to_dense", str(caught.value))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", [name for name in TENSORS if not name.endswith("@")])
def test_nan_and_infinity_are_refused(name: str, bad: float) -> None:
    x = torch.eye(3)
    x[2, 1] = x[1, 2] = bad
    with pytest.raises(
        ValueError, match=rf"the first in row 1, column 2 \({bad}\).*remove or impute"
    ):
        TENSORS[name](x)


@pytest.mark.parametrize(("name", "bad", "message"), WRONG)
def test_shapes_and_content(name: str, bad: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TENSORS[name](bad)
