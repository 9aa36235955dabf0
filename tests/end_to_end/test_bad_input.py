"""What is refused, everywhere: with the right error, naming the value and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from conceptors import (
    Conceptor,
    Correlation,
    FrequentDirections,
    aperture_by_gradient,
    aperture_by_validation,
    aperture_for_quota,
    similarity,
)
from helpers import normal, rotation

Call = Callable[[Any], object]

DENSE = Conceptor.from_states(normal(0, 9, 3), 1.0)
FACTORED = Conceptor.from_states(normal(0, 2, 3), 1.0)
BATCH = Conceptor.from_states(normal(0, 4, 2, 3), 1.0)
SKETCH = FrequentDirections(3, 2).update(normal(0, 9, 3))
STREAM = Correlation(3).update(normal(0, 9, 3))


def score(_: Conceptor, __: torch.Tensor) -> float:
    return 0.0


# --- tensors -----------------------------------------------------------------------------

TENSORS: dict[str, Call] = {
    "from_states": lambda x: Conceptor.from_states(x, 1.0),
    "from_correlation": lambda x: Conceptor.from_correlation(x, 1.0),
    "from_matrix": Conceptor.from_matrix,
    "vectors": lambda x: Conceptor.from_spectrum(x, torch.ones(3)),
    "values": lambda x: Conceptor.from_spectrum(torch.eye(3), x),
    "dense @": lambda x: DENSE @ x,
    "factored @": lambda x: FACTORED @ x,
    "evidence": DENSE.evidence,
    "Correlation.update": lambda x: Correlation(3).update(x),
    "Correlation weights": lambda x: Correlation(3).update(torch.ones(3, 3), x),
    "FrequentDirections.update": lambda x: FrequentDirections(3, 1).update(x),
    "FrequentDirections weights": lambda x: FrequentDirections(3, 1).update(torch.ones(3, 3), x),
    "aperture_for_quota": lambda x: aperture_for_quota(x, 0.5),
    "aperture_by_gradient": aperture_by_gradient,
    "aperture_by_validation": lambda x: aperture_by_validation(x, score),
}
ACTS_ON_ANY_NUMBERS = ("dense @", "factored @", "evidence")
NOT_FLOATS: dict[str, tuple[Any, str]] = {
    "list": ([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0]], "got list"),
    "number": (1.0, "got float"),
    "text": ("abc", "got str"),
    "integers": (torch.eye(3, dtype=torch.int64), r"got torch.int64 of shape \[3, 3\]"),
    "booleans": (torch.eye(3, dtype=torch.bool), "got torch.bool"),
    "half": (torch.eye(3).half(), "got torch.float16"),
    "bfloat16": (torch.eye(3).bfloat16(), "got torch.bfloat16"),
    "complex": (torch.eye(3, dtype=torch.complex64), "got torch.complex64"),
    "sparse": (torch.eye(3).to_sparse(), "sparse_coo"),
    "numpy integers": (np.eye(3, dtype=np.int64), "got ndarray of dtype int64"),
    "numpy half": (np.eye(3, dtype=np.float16), "got ndarray of dtype float16"),
    "numpy objects": (np.array([[None]]), "got ndarray of dtype object"),
    "numpy other bytes": (np.eye(3, dtype=np.dtype(">f8")), "got ndarray of dtype >f8"),
}


@pytest.mark.parametrize("bad", NOT_FLOATS)
@pytest.mark.parametrize("name", TENSORS)
def test_only_dense_float_tensors_are_taken(name: str, bad: str) -> None:
    value, message = NOT_FLOATS[bad]
    with pytest.raises(TypeError, match=message) as caught:
        TENSORS[name](value)
    assert re.search(r"torch\.as_tensor|\.float\(\)|to_dense", str(caught.value))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name in TENSORS if name not in ACTS_ON_ANY_NUMBERS])
def test_nan_and_infinity_are_refused(name: str, dtype: torch.dtype, bad: float) -> None:
    x = torch.eye(3, dtype=dtype)
    x[2, 1] = x[1, 2] = bad
    x = x[1] if "values" in name or "weights" in name else x
    where = "(2,)" if x.ndim == 1 else "(1, 2)"
    message = f"NaN or infinite entries, the first at {where} ({bad})"
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        TENSORS[name](x)
    assert str(list(x.shape)) in str(caught.value)
    assert "remove or impute" in str(caught.value)


# (call, bad value, what the message says: the shape that came and what would be right)
SHAPES: list[tuple[str, torch.Tensor, str]] = [
    (
        "from_states",
        torch.ones(3),
        r"\[\.\.\., n, d\] \(rows are samples\), got \[3\].*states\[None\]",
    ),
    ("from_states", torch.tensor(1.0), r"got \[\]"),
    ("from_states", torch.ones(0, 3), r"\[0, 3\] is empty"),
    ("from_states", torch.ones(3, 0), r"\[3, 0\] is empty"),
    ("from_states", torch.ones(0, 2, 3), r"\[0, 2, 3\] is empty"),
    ("from_correlation", torch.ones(3), r"\[\.\.\., d, d\] with d >= 1, got \[3\].*from_states"),
    ("from_correlation", torch.ones(2, 3), r"got \[2, 3\]"),
    ("from_correlation", torch.ones(0, 0), r"got \[0, 0\]"),
    ("from_correlation", torch.ones(0, 3, 3), r"got \[0, 3, 3\]"),
    ("from_matrix", torch.ones(3), r"got \[3\]"),
    ("from_matrix", torch.ones(3, 2), r"got \[3, 2\]"),
    ("from_matrix", torch.ones(0, 0), r"got \[0, 0\]"),
    ("vectors", torch.ones(3), r"\[\.\.\., d, r\] with d >= 1 and r <= d, got \[3\]"),
    ("vectors", torch.ones(2, 3), r"got \[2, 3\]; directions are columns"),
    ("vectors", torch.zeros(0, 0), r"got \[0, 0\]"),
    ("vectors", torch.zeros(0, 5, 3), r"got \[0, 5, 3\]"),
    ("vectors", torch.eye(4), r"values of shape \[3\] do not fit vectors of shape \[4, 4\]"),
    ("values", torch.ones(2), r"values of shape \[2\].*one value for each column"),
    ("values", torch.ones(1, 3), r"values of shape \[1, 3\]"),
    ("dense @", torch.ones(4).double(), r"\[\.\.\., 3\].*dimension 3, got \[4\]"),
    ("dense @", torch.ones(3, 2).double(), r"got \[3, 2\]"),
    ("dense @", torch.tensor(1.0).double(), r"got \[\]"),
    ("factored @", torch.ones(2, 4).double(), r"got \[2, 4\]"),
    ("evidence", torch.ones(2).double(), r"got \[2\]"),
    ("Correlation.update", torch.ones(3), r"\[\.\.\., n, 3\], got \[3\].*samples\[None\]"),
    ("Correlation.update", torch.ones(2, 4), r"got \[2, 4\]"),
    ("Correlation weights", torch.ones(2), r"weights of shape \[2\].*one weight a sample"),
    ("Correlation weights", torch.ones(3, 1), r"weights of shape \[3, 1\]"),
    ("FrequentDirections.update", torch.ones(3), r"got \[3\].*samples\[None\]"),
    ("FrequentDirections weights", torch.ones(2), r"one weight a sample"),
    ("aperture_for_quota", torch.ones(2, 3), r"got \[2, 3\]"),
    (
        "aperture_for_quota",
        torch.eye(3)[None],
        r"one matrix \[d, d\] is needed, got shape \[1, 3, 3\]",
    ),
    ("aperture_by_gradient", torch.ones(3), r"got \[3\]"),
    ("aperture_by_validation", torch.ones(3), r"got \[3\]"),
    ("aperture_by_validation", torch.ones(2, 3, 3), r"got \[2, 3, 3\]"),
]


@pytest.mark.parametrize(("name", "bad", "message"), SHAPES)
def test_shapes(name: str, bad: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TENSORS[name](bad)


SKEW = torch.tensor([[1.0, 0.5], [0.4, 1.0]]).double()
INDEFINITE = torch.tensor([[1.0, 2.0], [2.0, 1.0]]).double()
HIDDEN = torch.stack([1e12 * torch.eye(2).double(), SKEW])  # beside a large one
CONTENT: list[tuple[str, Any, str]] = [
    (
        "from_correlation",
        SKEW,
        r"not symmetric.*differ by 0.1 where.*1; pass .*correlation\.mT\) / 2",
    ),
    ("from_correlation", HIDDEN, r"\[2, 2, 2\] is not symmetric.*differ by 0.1"),
    (
        "from_correlation",
        INDEFINITE,
        r"not positive semi-definite.*eigenvalue is -1 .*X\.mT @ X / n",
    ),
    ("from_correlation", -torch.eye(2), "eigenvalue is -1"),
    ("from_correlation", 1e-30 * INDEFINITE, "eigenvalue is -1e-30"),
    ("from_correlation", torch.tensor([[0.0, 1], [1, 0]]), "eigenvalue is -1"),
    (
        "from_correlation",
        torch.stack([1e9 * torch.eye(2).double(), INDEFINITE]),
        "eigenvalue is -1",
    ),
    (
        "from_correlation",
        torch.tensor([[1.0, 1e308], [1e308, 1]], dtype=torch.float64),
        "positive",
    ),
    ("from_matrix", SKEW, "not symmetric"),
    (
        "from_matrix",
        2 * torch.eye(2),
        r"eigenvalues reach from 2 to 2 where \[0, 1\].*from_correlation",
    ),
    ("from_matrix", torch.eye(2) - 0.6, "reach from -0.2"),
    ("from_matrix", torch.full((3, 3), 1e308, dtype=torch.float64), "not a conceptor"),
    ("from_matrix", (1 + 1e-6) * torch.eye(2).double(), "reach from 1"),
    ("vectors", 2 * torch.eye(3), r"not orthonormal \(off by 3\).*qr\(vectors\)\.Q"),
    ("vectors", torch.ones(3, 3), "not orthonormal"),
    ("vectors", torch.diag(torch.tensor([1.0, 1.0, 0.0])), "not orthonormal"),  # all three needed
    ("vectors", torch.eye(4, 3) * torch.tensor([1.0, 1, 0]), "columns of zeros.*leave them out"),
    ("vectors", 1e30 * rotation(0, 3).float(), "not orthonormal"),
    ("values", torch.tensor([0.5, 0.5, 1.5]), r"\[0, 1\], got 0.5 to 1.5"),
    ("values", torch.tensor([0.5, 0.5, -0.1]), r"got -0.1 to 0.5"),
    ("Correlation weights", torch.tensor([1.0, -1, 1]), "must not be negative, got -1"),
    ("FrequentDirections weights", torch.tensor([1.0, -1, 1]), "must not be negative, got -1"),
    ("aperture_for_quota", SKEW, "not symmetric"),
    ("aperture_by_gradient", INDEFINITE, "positive semi-definite"),
    ("aperture_by_gradient", torch.zeros(2, 2), "zero"),
    ("aperture_by_validation", torch.ones(1, 3), "at least 2 rows, got 1"),
]


@pytest.mark.parametrize(("name", "bad", "message"), CONTENT)
def test_content(name: str, bad: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TENSORS[name](bad)


@pytest.mark.parametrize("shape", [(2, 5), (5, 5), (9, 5), (3, 2, 5)])
@pytest.mark.parametrize(("size", "aperture"), [(1e200, 1.0), (1e100, 1e100), (1.0, 1e200)])
def test_overflow_is_named(shape: tuple[int, ...], size: float, aperture: float) -> None:
    X = size * (1 + normal(0, *shape).abs())
    with pytest.raises(ValueError, match=r"overflows.*scale the data or lower the aperture"):
        Conceptor.from_states(X, aperture)
    if size < 1e154:
        R = X.mT @ X
        with pytest.raises(ValueError, match=re.escape(f"aperture {aperture} is too large")):
            Conceptor.from_correlation(R, aperture)


@pytest.mark.parametrize("count", [4, 6])
def test_just_below_overflow_is_right(count: int) -> None:
    """All samples the same: one direction, claimed entirely, also after many ORs."""
    C = Conceptor.from_states(torch.full((count, 5), 5e153, dtype=torch.float64), 1.0)
    many = C
    for _ in range(9):
        many = many | C
    for found in (C, many, many.dense()):
        torch.testing.assert_close(found.matrix(), torch.full((5, 5), 0.2).double())
        assert found.singular_values.tolist() == pytest.approx([1, 0, 0, 0, 0], abs=1e-12)


# --- numbers -----------------------------------------------------------------------------

ROWS = torch.eye(3)
APERTURES: dict[str, Call] = {
    "from_states": lambda a: Conceptor.from_states(ROWS, a),
    "from_correlation": lambda a: Conceptor.from_correlation(ROWS, a),
    "from_spectrum": lambda a: Conceptor.from_spectrum(ROWS, ROWS[0], aperture=a),
    "from_conceptor": lambda a: Conceptor.from_conceptor(DENSE, a),
    "Correlation": STREAM.conceptor,
    "FrequentDirections": SKETCH.conceptor,
    "bound": SKETCH.conceptor_error_bound,
    "validation": lambda a: aperture_by_validation(normal(0, 9, 3), score, [1.0, a]),
}
NUMBERS: dict[str, Call] = {
    **APERTURES,
    "gamma": DENSE.adapt,
    "threshold": DENSE.harden,
    "tolerance": lambda x: DENSE.factored(tolerance=x),
    "atol": lambda x: DENSE.allclose(DENSE, atol=x),
    "quota": lambda x: aperture_for_quota(ROWS, x),
    "rest": lambda x: Conceptor.from_spectrum(ROWS, ROWS[0], rest=x),
}
MAY_BE_NONE = ("from_spectrum", "from_conceptor", "tolerance", "atol")


@pytest.mark.parametrize(
    "bad", [True, "3", None, 1 + 2j, [1.0], np.array([1.0]), torch.tensor(True)]
)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_must_be_numbers(name: str, bad: Any) -> None:
    if bad is None and name in MAY_BE_NONE:
        NUMBERS[name](bad)
        return
    with pytest.raises(TypeError, match=r"must be a number, got .* of type"):
        NUMBERS[name](bad)


@pytest.mark.parametrize(
    "bad", [0.0, 0, -0.0, -1.0, math.nan, -math.inf, torch.tensor(-1.0), Fraction(-1)]
)
@pytest.mark.parametrize("name", APERTURES)
def test_apertures_must_be_positive(name: str, bad: Any) -> None:
    with pytest.raises(
        ValueError, match=re.escape(f"aperture must be a number in ]0, inf], got {float(bad)}")
    ):
        APERTURES[name](bad)


@pytest.mark.parametrize("name", [name for name in APERTURES if name != "from_conceptor"])
def test_an_infinite_aperture_is_reached_by_adapt(name: str) -> None:
    with pytest.raises(ValueError, match=r"finite, got inf.*\.adapt\(math\.inf\)"):
        APERTURES[name](math.inf)
    with pytest.raises(ValueError, match="beyond the range of floats"):
        APERTURES[name](10**400)


@pytest.mark.parametrize("bad", [1e-60, 1e60])
@pytest.mark.parametrize("name", ["from_states", "from_correlation", "from_spectrum"])
def test_apertures_must_fit_the_dtype(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"aperture {bad} is beyond the range")):
        APERTURES[name](bad)
    with pytest.raises(ValueError, match=r"range of torch\.float32"):
        Conceptor.from_states(torch.ones(2, 3, 3), torch.tensor([1.0, bad], dtype=torch.float64))


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (torch.tensor([1.0, 0.0]), ValueError, r"every aperture must be positive.*\[1\.0, 0\.0\]"),
        (torch.tensor([1.0, math.nan]), ValueError, "every aperture"),
        (torch.tensor([1.0, math.inf]), ValueError, "every aperture"),
        (
            torch.tensor([1.0, 2.0, 3.0]),
            ValueError,
            r"shape \[3\] does not fit the batch shape \[2\]",
        ),
        (torch.ones(2, 2), ValueError, r"shape \[2, 2\] does not fit"),
        (torch.tensor([1, 2]), TypeError, "int64"),
        (np.array([1.0, 2.0]), TypeError, "must be a number"),
        ([1.0, 2.0], TypeError, "must be a number"),
    ],
)
def test_apertures_of_a_batch(bad: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Conceptor.from_states(torch.ones(2, 3, 4), bad)
    with pytest.raises(error, match=message):
        Conceptor.from_correlation(torch.eye(4).expand(2, 4, 4), bad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DENSE.adapt(-1), r"gamma must be a number in \[0, inf\], got -1"),
        (lambda: DENSE.adapt(math.nan), "gamma .* got nan"),
        (lambda: DENSE.harden(0.0), r"threshold must be a number in \]0, 1\], got 0"),
        (lambda: DENSE.harden(1.5), "got 1.5"),
        (lambda: DENSE.factored(tolerance=-0.1), r"tolerance .*\[0, 1\], got -0.1"),
        (lambda: DENSE.factored(tolerance=2), "got 2"),
        (lambda: DENSE.factored(rank=-1), r"rank must be in \[0, 3\], got -1"),
        (lambda: DENSE.factored(rank=4), r"rank must be in \[0, 3\], got 4"),
        (lambda: FACTORED.factored(rank=4), r"rank must be in \[0, 3\], got 4"),
        (
            lambda: DENSE.factored(rank=1, tolerance=0.1),
            r"rank \(1\) or tolerance \(0.1\), not both",
        ),
        (lambda: DENSE.allclose(DENSE, atol=-1), r"atol .* got -1"),
        (lambda: Conceptor.from_spectrum(ROWS, ROWS[0], rest=0.5), "rest must be 0 or 1, got 0.5"),
        (lambda: Conceptor.from_spectrum(ROWS, ROWS[0], rest=2), r"rest .*\[0, 1\], got 2"),
        (lambda: Conceptor.zero(0), "dim must be at least 1, got 0"),
        (lambda: Conceptor.identity(-3), "dim must be at least 1, got -3"),
        (lambda: Correlation(0), "dim must be at least 1, got 0"),
        (lambda: FrequentDirections(0, 1), "dim must be at least 1, got 0"),
        (lambda: FrequentDirections(3, 0), r"rank must be in \[1, 3\], got 0"),
        (lambda: FrequentDirections(3, 4), r"rank must be in \[1, 3\], got 4"),
    ],
)
def test_numbers_out_of_range(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


WHOLE: dict[str, Call] = {
    "zero": Conceptor.zero,
    "identity": Conceptor.identity,
    "Correlation": Correlation,
    "FrequentDirections dim": lambda x: FrequentDirections(x, 1),
    "FrequentDirections rank": lambda x: FrequentDirections(3, x),
    "rank dense": lambda x: DENSE.factored(rank=x),
    "rank factored": lambda x: FACTORED.factored(rank=x),
    "folds": lambda x: aperture_by_validation(normal(0, 9, 3), score, folds=x),
    "seed": lambda x: aperture_by_validation(normal(0, 9, 3), score, seed=x),
}


@pytest.mark.parametrize("bad", [2.0, "2", True, [2], 2.5, np.float64(2)])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_must_be_whole(name: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a whole number, got .* of type"):
        WHOLE[name](bad)


@pytest.mark.parametrize("name", WHOLE)
def test_numpy_integers_are_whole_numbers(name: str) -> None:
    WHOLE[name](np.int64(2))


DTYPES: dict[str, Call] = {
    "zero": lambda t: Conceptor.zero(3, dtype=t),
    "identity": lambda t: Conceptor.identity(3, dtype=t),
    "to": lambda t: DENSE.to(dtype=t),
    "Correlation": lambda t: Correlation(3, dtype=t),
    "FrequentDirections": lambda t: FrequentDirections(3, 1, dtype=t),
}


@pytest.mark.parametrize(
    "bad", [torch.int64, torch.float16, torch.bfloat16, torch.complex64, "float32", float]
)
@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(name: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=r"torch\.float32 or torch\.float64, got"):
        DTYPES[name](bad)


# --- two conceptors ----------------------------------------------------------------------

PAIRS: dict[str, Callable[[Any, Any], object]] = {
    "or": lambda a, b: a | b,
    "and": lambda a, b: a & b,
    "order": lambda a, b: a <= b,
    "reverse order": lambda a, b: a >= b,
    "similarity": similarity,
    "allclose": Conceptor.allclose,
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("first", [DENSE, FACTORED], ids=["dense", "factored"])
def test_pairs_that_do_not_fit(name: str, first: Conceptor) -> None:
    join = PAIRS[name]
    with pytest.raises(ValueError, match=r"different size, . and ., cannot.*the same space"):
        join(first, Conceptor.zero(4))
    with pytest.raises(TypeError, match=r"torch.float.*torch.float.*\.to\(dtype=\.\.\.\)"):
        join(first, Conceptor.zero(3, dtype=torch.float32))
    with pytest.raises(ValueError, match=r"shape \[.\] and \[.\] do not broadcast"):
        join(BATCH, BATCH[:3])


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("bad", [3, None, torch.eye(3).double(), "C", [1]])
def test_partners_that_are_no_conceptors(name: str, bad: Any) -> None:
    with pytest.raises(TypeError):
        PAIRS[name](DENSE, bad)
    if name != "allclose":  # a method
        with pytest.raises(TypeError):
            PAIRS[name](bad, DENSE)


def test_a_product_of_conceptors_is_none() -> None:
    with pytest.raises(TypeError, match="use A & B"):
        DENSE @ FACTORED  # type: ignore[operator]
    with pytest.raises(TypeError, match="needs a Conceptor, got Tensor"):
        Conceptor.from_conceptor(torch.eye(3))  # type: ignore[arg-type]


@pytest.mark.parametrize("C", [BATCH, BATCH.dense()], ids=["factored", "dense"])
def test_rows_that_do_not_fit_a_batch(C: Conceptor) -> None:
    with pytest.raises(
        ValueError, match=r"\[3, 5, 3\] do not fit a batch of conceptors of shape \[4\]"
    ):
        C @ torch.ones(3, 5, 3).double()
    with pytest.raises(TypeError, match=r"x is torch.float32.*torch.float64"):
        C @ torch.ones(5, 3)
    assert (C @ torch.ones(1, 5, 3).double()).shape == (4, 5, 3)


def test_mixed_dtypes() -> None:
    with pytest.raises(TypeError, match=r"vectors is torch.float32, values is torch.float64"):
        Conceptor.from_spectrum(torch.eye(3), torch.ones(3).double())
    for C in (DENSE, FACTORED):
        with pytest.raises(TypeError, match=r"x is torch.float32, the conceptor is torch.float64"):
            C @ torch.ones(3)


# --- devices -----------------------------------------------------------------------------


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_other_devices() -> None:
    with pytest.raises(ValueError, match=r"on cuda.*\.to\(device\)"):
        DENSE @ torch.ones(3).double().cuda()
    with pytest.raises(ValueError, match=r"on cpu.*on cuda"):
        DENSE | DENSE.to("cuda")
    with pytest.raises(ValueError, match=r"samples are on cuda.*device='cuda"):
        Correlation(3).update(torch.ones(2, 3).cuda())
