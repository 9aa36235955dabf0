"""Choosing an aperture by quota."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conceptors import Conceptor, aperture_for_quota
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


def test_the_quota_is_hit_for_float32_too() -> None:
    """Over six decades, where every eigenvalue counts that the conceptor counts."""
    scales = torch.logspace(0, -3, 60, dtype=torch.float64)
    X = normal(0, 200, 60) * scales @ rotation(1, 60)
    R = (X.mT @ X / 200).float()
    for quota in (0.1, 0.5, 0.9):
        C = Conceptor.from_correlation(R, aperture_for_quota(R, quota))
        assert float(C.quota) == pytest.approx(quota, abs=1e-5)


def test_quotas_out_of_reach() -> None:
    R = torch.diag(torch.tensor([1.0, 1, 0, 0]))
    with pytest.raises(ValueError, match=r"quota 0.5 cannot be reached.*rank 2 of 4.*below 0.5"):
        aperture_for_quota(R, 0.5)
