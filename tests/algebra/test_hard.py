"""Hard conceptors stay hard: AND and OR project on the intersection and on the sum of ranges."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from conceptors import Conceptor
from conceptors.algebra.logic import same_angle
from helpers import normal, rotation

DTYPES = [torch.float64, torch.float32]
ANGLES = [0.5, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6]
FORMS = ["dense", "factored", "negated"]
DIM, OWN, SHARED = 24, 3, 2


def bases(angle: float, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Directions of A, those of B, each turned out of A by `angle`, and axes that both have."""
    axes = torch.eye(DIM, dtype=torch.float64)[:, :SHARED]
    turned = torch.block_diag(torch.zeros(SHARED, SHARED), rotation(seed, DIM - SHARED)).double()
    first, away = turned[:, SHARED : SHARED + OWN], turned[:, SHARED + OWN : SHARED + 2 * OWN]
    second = first * math.cos(angle) + away * math.sin(angle)
    return first.to(dtype), second.to(dtype), axes.to(dtype)


def projector(form: str, *parts: Tensor) -> Conceptor:
    vectors = torch.cat(parts, -1)
    ones = vectors.new_ones(vectors.shape[:-2] + vectors.shape[-1:])
    claimed = Conceptor.from_spectrum(vectors, ones)
    if form == "dense":
        return claimed.dense().harden()
    return ~(~claimed).dense().top_k() if form == "negated" else claimed


def leak(claimed: Conceptor, vectors: Tensor) -> float:
    """The largest part of a unit vector among the columns that is not claimed."""
    rows = vectors.mT
    return float((rows - claimed @ rows).norm(dim=-1).amax())


def is_hard(conceptor: Conceptor, rank: int) -> bool:
    """Whether singular values are exactly 1, `rank` times, and exactly 0."""
    wanted = torch.arange(conceptor.dim) < rank
    return torch.equal(conceptor.singular_values, wanted.to(conceptor.dtype))


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_or_claims_sums_and_and_intersections(form: str, dtype: torch.dtype, angle: float) -> None:
    first, second, axes = bases(angle, dtype)
    A, B = projector(form, first, axes), projector(form, second, axes)
    both = A | B
    assert is_hard(both, 2 * OWN + SHARED)
    rounding = 4 * torch.finfo(dtype).eps
    assert max(leak(both, vectors) for vectors in (first, second, axes)) <= rounding
    matrix = both.matrix().double()
    assert float((matrix @ matrix - matrix).norm()) <= 16 * rounding
    assert is_hard(A & B, SHARED)
    assert leak(A & B, axes) <= rounding / angle  # as far as rounding of A and B turns it
    assert is_hard(~A & ~B, DIM - 2 * OWN - SHARED)
    assert is_hard(~A | ~B, DIM - SHARED)
    assert is_hard(A | ~B, DIM)
    assert is_hard(A & ~B, 0)  # no direction of A is quite outside B
    assert bool(both >= A)
    assert bool(both >= B)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_below_the_stated_angle_directions_are_the_same(form: str, dtype: torch.dtype) -> None:
    first, second, axes = bases(same_angle(dtype) / 5, dtype)
    A, B = projector(form, first, axes), projector(form, second, axes)
    for both in (A | B, A & B):
        assert is_hard(both, OWN + SHARED)
        assert max(leak(both, vectors) for vectors in (first, second)) <= same_angle(dtype)
    turned = first @ rotation(5, OWN).to(dtype)  # the same space, rounded in another basis
    assert is_hard(A | projector(form, turned, axes), OWN + SHARED)
    assert is_hard(A & projector(form, turned, axes), OWN + SHARED)


def test_or_survives_an_svd_that_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK gives up on rare matrices; the same matrix with turned rows is factored instead."""
    a, b = (Conceptor.from_states(normal(s, 3, 8), 5.0).harden() for s in (0, 1))
    expected, svd = (a | b).matrix(), torch.linalg.svd
    failures: list[Tensor] = []

    def unreliable(matrix: Tensor, full_matrices: bool = True) -> Any:
        if not failures:
            failures.append(matrix)
            raise torch.linalg.LinAlgError(  # type: ignore[attr-defined]
                "the algorithm failed to converge"
            )
        return svd(matrix, full_matrices=full_matrices)

    monkeypatch.setattr(torch.linalg, "svd", unreliable)
    torch.testing.assert_close((a | b).matrix(), expected)
    assert failures
