"""Numbers, tensors and partners that are refused: the message names the value and the remedy."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from conceptors import (
    Conceptor,
    Correlation,
    FrequentDirections,
    aperture_for_quota,
    similarity,
)
from helpers import normal

Call = Callable[[Any], object]
EYE = torch.eye(3)
DENSE = Conceptor.from_states(normal(0, 9, 3), 1.0)
FACTORED = Conceptor.from_states(normal(0, 2, 3), 1.0)


APERTURES: dict[str, Call] = {
    "from_states": lambda a: Conceptor.from_states(EYE, a),
    "from_correlation": lambda a: Conceptor.from_correlation(EYE, a),
    "Correlation": Correlation(3).update(normal(0, 9, 3)).conceptor,
    "FrequentDirections": FrequentDirections(3, 2).update(normal(0, 9, 3)).conceptor,
}
NUMBERS: dict[str, Call] = {
    **APERTURES,
    "gamma": DENSE.adapt,
    "quota": lambda x: aperture_for_quota(EYE, x),
}
TENSORS: dict[str, Call] = {
    "from_states": lambda x: Conceptor.from_states(x, 1.0),
    "from_correlation": lambda x: Conceptor.from_correlation(x, 1.0),
    "from_matrix": Conceptor.from_matrix,
    "dense @": lambda x: DENSE @ x,
    "factored @": lambda x: FACTORED @ x,
    "Correlation.update": Correlation(3).update,
    "FrequentDirections.update": FrequentDirections(3, 1).update,
    "aperture_for_quota": lambda x: aperture_for_quota(x, 0.5),
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
]


@pytest.mark.parametrize("bad", [True, "3", None, 1 + 2j, np.array([1.0])])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_must_be_numbers(name: str, bad: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a number, got .* of type"):
        NUMBERS[name](bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, 10**400])
@pytest.mark.parametrize("name", APERTURES)
def test_apertures_must_be_positive_and_finite(name: str, bad: float) -> None:
    with pytest.raises(ValueError, match=r"aperture|beyond the range"):
        APERTURES[name](bad)


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


@pytest.mark.parametrize(("size", "aperture"), [(1e200, 1.0), (1e100, 1e100), (1.0, 1e200)])
def test_overflow_is_named(size: float, aperture: float) -> None:
    with pytest.raises(ValueError, match=r"overflows.*scale the data or lower the aperture"):
        Conceptor.from_states(size * (1 + normal(0, 9, 5).abs()), aperture)


@pytest.mark.parametrize("join", [lambda a, b: a | b, lambda a, b: a & b, similarity])
@pytest.mark.parametrize("first", [DENSE, FACTORED], ids=["dense", "factored"])
def test_pairs_that_do_not_fit(join: Callable[[Any, Any], object], first: Conceptor) -> None:
    with pytest.raises(ValueError, match=r"different size, . and ., cannot.*the same space"):
        join(first, Conceptor.zero(4))
    with pytest.raises(TypeError, match=r"torch.float.*torch.float.*\.to\(dtype=\.\.\.\)"):
        join(first, Conceptor.zero(3, dtype=torch.float32))
    with pytest.raises(TypeError):
        join(first, torch.eye(3).double())
