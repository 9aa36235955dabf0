"""Tensors that are refused, everywhere: with the right error, naming the value and what to do."""

from __future__ import annotations

import math
import re
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
)
from end_to_end.values import DENSE, FACTORED, Call, score
from helpers import normal, rotation

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
