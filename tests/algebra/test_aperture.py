"""Choosing an aperture: by quota, by validation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conceptors import Conceptor, aperture_by_validation, aperture_for_quota
from helpers import normal, rotation


@given(
    st.integers(0, 10**6),
    st.integers(1, 8),
    st.floats(0.01, 0.99),
    st.floats(0, 1.5),
    st.sampled_from([1e-300, 1e-6, 1.0, 1e6, 1e100]),
)
def test_the_quota_is_hit(seed: int, dim: int, share: float, decades: float, scale: float) -> None:
    rank, U = 1 + seed % dim, rotation(seed, dim)
    sigma = torch.zeros(dim, dtype=torch.float64)
    sigma[:rank] = scale * 10.0 ** (decades * normal(seed, rank))
    R = (U * sigma) @ U.mT
    quota = share * rank / dim
    C = Conceptor.from_correlation((R + R.mT) / 2, aperture_for_quota((R + R.mT) / 2, quota))
    assert float(C.quota) == pytest.approx(quota, abs=1e-9)


def test_quotas_out_of_reach() -> None:
    R = torch.diag(torch.tensor([1.0, 1, 0, 0]))
    with pytest.raises(ValueError, match=r"quota 0.5 cannot be reached.*rank 2 of 4.*below 0.5"):
        aperture_for_quota(R, 0.5)


def test_validation_finds_the_best_denoiser() -> None:
    """Signal variance 1, noise variance v: C x is the best estimate where α⁻² = v."""
    noise, clean = 0.5, normal(0, 5000, 2) @ torch.eye(2, 4, dtype=torch.float64)

    def denoised(C: Conceptor, X: Tensor) -> float:
        noisy = X + noise * normal(1, len(X), 4)
        return -float((C @ noisy - X).square().mean())

    candidates = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert aperture_by_validation(clean, denoised, candidates) == 1 / noise


@pytest.mark.parametrize(("rows", "folds"), [(11, 4), (7, 7), (2, 2)])
def test_each_fold_is_held_out_once(rows: int, folds: int) -> None:
    X = normal(0, rows, 3)
    parts: list[Tensor] = []

    def score(C: Conceptor, held_out: Tensor) -> float:
        parts.append(held_out)
        inside = (X[:, None] == held_out[None]).all(-1).any(1)
        assert C.allclose(Conceptor.from_states(X[~inside], 2.0), atol=1e-12)
        return 0.0

    aperture_by_validation(X, score, [2.0], folds=folds, seed=0)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    together = torch.cat(parts)
    assert torch.equal(together[together[:, 0].argsort()], X[X[:, 0].argsort()])
    aperture_by_validation(X, score, [2.0], folds=folds, seed=0)
    assert torch.equal(parts[folds], parts[0])  # the seed decides the folds


def test_scores_must_be_numbers() -> None:
    with pytest.raises(ValueError, match="is NaN at aperture 1, fold 0"):
        aperture_by_validation(normal(0, 6, 3), lambda C, X: float("nan"), [1.0])
    with pytest.raises(ValueError, match="at least one candidate"):
        aperture_by_validation(normal(0, 6, 3), lambda C, X: 0.0, [])
