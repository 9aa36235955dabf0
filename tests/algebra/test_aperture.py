"""Choosing an aperture: by quota, by gradient, by validation."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import (
    ApertureChoice,
    Conceptor,
    aperture_by_gradient,
    aperture_by_validation,
    aperture_for_quota,
)
from helpers import normal, rotation


def correlation(seed: int, dim: int, rank: int, decades: float, scale: float = 1.0) -> Tensor:
    """R with eigenvalues over some decades, random directions, and dim - rank zeros."""
    sigma = torch.zeros(dim, dtype=torch.float64)
    sigma[:rank] = scale * 10.0 ** (decades * normal(seed, rank))
    U = rotation(seed, dim)
    R: Tensor = (U * sigma) @ U.mT
    return (R + R.mT) / 2


# --- quota -------------------------------------------------------------------------------


@given(
    st.integers(0, 10**6),
    st.integers(1, 8),
    st.floats(0.01, 0.99),
    st.floats(0, 1.5),
    st.sampled_from([1e-100, 1e-6, 1.0, 1e6, 1e100]),
)
def test_the_quota_is_hit(seed: int, dim: int, share: float, decades: float, scale: float) -> None:
    rank = 1 + seed % dim
    R = correlation(seed, dim, rank, decades, scale)
    quota = share * rank / dim
    alpha = aperture_for_quota(R, quota)
    assert float(Conceptor.from_correlation(R, alpha).quota) == pytest.approx(quota, abs=1e-9)
    assert float(Conceptor.from_correlation(R, alpha).adapt(1.0).quota) == pytest.approx(
        quota, abs=1e-9
    )


def test_the_quota_is_hit_for_float32_too() -> None:
    """Over six decades, so that every eigenvalue counts that the conceptor counts."""
    scales = torch.logspace(0, -3, 60, dtype=torch.float64)
    X = normal(0, 200, 60) * scales @ rotation(1, 60)
    R = (X.mT @ X / 200).float()
    for quota in (0.1, 0.5, 0.9):
        C = Conceptor.from_correlation(R, aperture_for_quota(R, quota))
        assert float(C.quota) == pytest.approx(quota, abs=1e-5)


def test_by_hand() -> None:
    """One direction of variance 9 out of two: s = 1/2, so quota 1/4, at aperture 1/3."""
    R = torch.diag(torch.tensor([9.0, 0.0])).double()
    assert aperture_for_quota(R, 0.25) == pytest.approx(1 / 3, rel=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_extreme_scales(scale: float) -> None:
    R = scale * torch.eye(3, dtype=torch.float64)
    assert aperture_for_quota(R, 0.5) == pytest.approx(scale**-0.5, rel=1e-9)
    assert aperture_by_gradient(R) == pytest.approx(math.sqrt(2) * scale**-0.5, rel=1e-6)
    C = Conceptor.from_correlation(R, aperture_for_quota(R, 0.5))
    assert float(C.quota) == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize(
    ("R", "quota", "message"),
    [
        (torch.eye(4), 1.0, "rank 4 of 4, so quotas stay below 1"),
        (torch.diag(torch.tensor([1.0, 1, 0, 0])), 0.5, "quota 0.5 cannot be reached.*rank 2 of 4"),
        (torch.zeros(3, 3), 0.1, "rank 0 of 3"),
        (torch.eye(3), 0.0, r"quota must be a number in \]0, 1\], got 0"),
        (torch.eye(3), -0.5, "got -0.5"),
        (torch.eye(3), 1.5, "got 1.5"),
        (torch.eye(3), math.nan, "got nan"),
        (torch.eye(3)[None], 0.5, r"shape \[1, 3, 3\]"),
        (torch.tensor([[1.0, 2], [2, 1]]), 0.5, "not positive semi-definite"),
        (torch.tensor([[1.0, 2], [0, 1]]), 0.5, "not symmetric"),
    ],
)
def test_quota_errors(R: Tensor, quota: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        aperture_for_quota(R, quota)


# --- gradient ----------------------------------------------------------------------------


def slope(R: Tensor, log_alpha: float) -> float:
    """d|C(α)|² / d log α by differences of the conceptors themselves."""
    step = 1e-4
    sizes = [
        float(Conceptor.from_correlation(R, math.exp(log_alpha + h)).matrix().square().sum())
        for h in (-step, step)
    ]
    return (sizes[1] - sizes[0]) / (2 * step)


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0, 2))
def test_no_aperture_has_a_larger_gradient(seed: int, dim: int, decades: float) -> None:
    R = correlation(seed, dim, 1 + seed % dim, decades)
    sigma = torch.linalg.eigvalsh(R).clamp_min(0)
    sigma = sigma[sigma > 1e-12 * sigma.max()]

    def gradient(log: Tensor) -> Tensor:
        s = torch.sigmoid(sigma.log() + 2 * log[:, None])
        return 4 * (s.square() * (1 - s)).sum(1)

    low, high = -0.5 * math.log(float(sigma.max())) - 4, -0.5 * math.log(float(sigma.min())) + 4
    best = gradient(torch.linspace(low, high, 20_000, dtype=torch.float64)).max()
    alpha = aperture_by_gradient(R)
    found = gradient(torch.tensor([math.log(alpha)], dtype=torch.float64))
    assert float(found) >= float(best) - 1e-9
    assert slope(R, math.log(alpha)) == pytest.approx(float(found), rel=1e-4)


def test_gradient_by_hand() -> None:
    """4 s² (1 - s) is largest at s = 2/3, where α² σ = 2."""
    R = 5 * torch.eye(4, dtype=torch.float64)
    assert aperture_by_gradient(R) == pytest.approx(math.sqrt(2 / 5), rel=1e-7)


def test_of_two_humps_the_higher_is_taken() -> None:
    sigma = torch.tensor([1.0] * 2 + [1e-8] * 3, dtype=torch.float64)
    assert aperture_by_gradient(torch.diag(sigma)) == pytest.approx(math.sqrt(2e8), rel=1e-5)


def test_of_two_nearly_equal_humps_the_higher_is_taken() -> None:
    """Heights that differ less than a grid resolves: both have to be climbed.

    For variances 1 and g the second hump is higher, by about g / 2, as s₁ < 1 adds to it.
    """
    for i in range(20):
        g = 10 ** (-2 - i / 10)
        R = torch.diag(torch.tensor([1.0, g], dtype=torch.float64))
        assert aperture_by_gradient(R) == pytest.approx(math.sqrt(2 / g), rel=0.05)


def test_gradient_errors() -> None:
    with pytest.raises(ValueError, match="zero"):
        aperture_by_gradient(torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"\[2, 3, 3\]"):
        aperture_by_gradient(torch.eye(3).expand(2, 3, 3))


# --- validation --------------------------------------------------------------------------


def minus_distance(quota: float, C: Conceptor, _: Tensor) -> float:
    return -abs(float(C.quota) - quota)


def test_the_planted_optimum_is_found() -> None:
    """The score falls with the distance of the quota from that of a hidden aperture."""
    X = normal(0, 400, 5)
    for planted in (0.25, 2.0, 32.0):
        goal = float(Conceptor.from_states(X, planted).quota)
        scores = partial(minus_distance, goal)
        assert aperture_by_validation(X, scores).aperture == planted


def test_a_real_score_denoises_best_at_the_right_aperture() -> None:
    """Signal variance 1, noise variance v: C x is the best estimate where α⁻² = v."""
    noise = 0.5
    clean = normal(0, 5000, 2) @ torch.eye(2, 4, dtype=torch.float64)

    def denoised(C: Conceptor, X: Tensor) -> float:
        noisy = X + noise * normal(1, len(X), 4)
        return -float((C @ noisy - X).square().mean())

    candidates = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    choice = aperture_by_validation(clean, denoised, candidates)
    assert choice.aperture == 1 / noise
    assert choice.apertures == tuple(candidates)
    assert max(choice.mean) == choice.mean[3]


def test_each_fold_is_held_out_once_and_the_conceptor_is_of_the_others() -> None:
    X = normal(0, 11, 3)
    seen: list[Tensor] = []

    def score(C: Conceptor, held_out: Tensor) -> float:
        seen.append(held_out)
        inside = (X[:, None] == held_out[None]).all(-1).any(1)
        wanted = Conceptor.from_states(X[~inside], 2.0)
        assert torch.allclose(C.matrix(), wanted.matrix(), rtol=0, atol=1e-12)
        return float(len(seen))

    choice = aperture_by_validation(X, score, [2.0], folds=4)
    assert sorted(len(rows) for rows in seen) == [2, 3, 3, 3]
    rows = torch.cat(seen)
    assert torch.equal(rows[rows[:, 0].argsort()], X[X[:, 0].argsort()])
    assert not torch.equal(rows, X)  # shuffled
    assert choice.mean == (2.5,)
    assert choice.std == pytest.approx([torch.tensor([1.0, 2, 3, 4]).std().item()])


@pytest.mark.parametrize(("rows", "folds"), [(10, 9), (5, 4), (7, 7), (2, 2), (100, 5)])
def test_there_are_as_many_folds_as_asked_for(rows: int, folds: int) -> None:
    sizes: list[int] = []

    def score(C: Conceptor, held_out: Tensor) -> float:
        sizes.append(len(held_out))
        return 0.0

    aperture_by_validation(normal(0, rows, 3), score, [1.0], folds=folds)
    assert len(sizes) == folds
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1


def test_the_seed_decides_the_folds() -> None:
    X = normal(0, 20, 3)

    def first(seed: int) -> float:
        return aperture_by_validation(X, lambda C, Y: float(Y[0, 0]), [1.0], seed=seed).mean[0]

    assert first(0) == first(0)
    assert first(0) != first(1)


def test_candidates_may_come_as_a_tensor_or_a_generator() -> None:
    X = normal(0, 20, 3)
    for given_as in (torch.tensor([1.0, 2.0]), (a for a in (1.0, 2.0)), [1, 2]):
        choice = aperture_by_validation(X, lambda C, _: float(C.quota), given_as)  # type: ignore[arg-type]
        assert isinstance(choice, ApertureChoice)
        assert choice.aperture == 2.0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"states": torch.ones(1, 3)}, ValueError, "at least 2 rows"),
        ({"states": torch.ones(2, 4, 3)}, ValueError, r"\[n, d\], got \[2, 4, 3\]"),
        ({"states": torch.full((4, 3), math.nan)}, ValueError, "NaN"),
        ({"apertures": []}, ValueError, "at least one candidate"),
        ({"apertures": [1.0, 0.0]}, ValueError, "aperture must be a number"),
        ({"apertures": [math.inf]}, ValueError, "finite"),
        ({"apertures": ["1"]}, TypeError, "'1' of type str"),
        ({"folds": 1}, ValueError, r"folds must be in \[2, 6\], got 1"),
        ({"folds": 7}, ValueError, r"folds must be in \[2, 6\], got 7"),
        ({"folds": 2.0}, TypeError, "folds must be a whole number"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 2**70}, ValueError, "seed"),
        ({"score": lambda C, X: math.nan}, ValueError, "NaN at aperture 1, fold 0"),
    ],
)
def test_validation_errors(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {
        "states": normal(0, 6, 3),
        "score": lambda C, X: 0.0,
        "apertures": [1.0],
        "folds": 2,
    }
    with pytest.raises(error, match=message):
        aperture_by_validation(**{**arguments, **change})
