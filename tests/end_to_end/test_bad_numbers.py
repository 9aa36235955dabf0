"""Numbers, dtypes and partners that are refused, everywhere: what was wrong, and what to do."""

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
    aperture_by_validation,
    aperture_for_quota,
    similarity,
)
from end_to_end.values import BATCH, DENSE, FACTORED, SKETCH, STREAM, Call, score
from helpers import normal

# --- numbers -----------------------------------------------------------------------------

ROWS = torch.eye(3)
APERTURES: dict[str, Call] = {
    "from_states": lambda a: Conceptor.from_states(ROWS, a),
    "from_correlation": lambda a: Conceptor.from_correlation(ROWS, a),
    "from_spectrum": lambda a: Conceptor.from_spectrum(ROWS, ROWS[0], aperture=a),
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
MAY_BE_NONE = ("from_spectrum", "tolerance", "atol")


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


@pytest.mark.parametrize("name", APERTURES)
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
    assert repr(WHOLE[name](np.int64(2))) == repr(WHOLE[name](2))


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
