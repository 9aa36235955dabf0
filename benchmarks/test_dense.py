"""A conceptor from a correlation matrix, against the ways of older code."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.measure import Row, duration, interleave, target
from conceptors import Conceptor

APERTURE = 10.0


def correlation(dim: int) -> Tensor:
    """Full rank, with a spectrum that falls over four orders of magnitude."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2 * dim, dim, generator=generator, dtype=torch.float64)
    rows *= torch.logspace(0, -2, dim, dtype=torch.float64)
    moments: Tensor = rows.mT @ rows / len(rows)
    return moments


def by_inverse(R: Tensor) -> Tensor:
    """C = R (R + α⁻² I)⁻¹, as it is printed."""
    C: Tensor = R @ torch.linalg.inv(R + APERTURE**-2 * torch.eye(len(R), dtype=R.dtype))
    return C


def by_inverse_and_svd(R: Tensor) -> Tensor:
    """The same, and the SVD that older code takes of every conceptor for logic and quota."""
    C = by_inverse(R)
    torch.linalg.svd(C)
    return C


def by_svd(R: Tensor) -> Tensor:
    """C = U Σ (Σ + α⁻² I)⁻¹ Uᵀ from the SVD of R, with diagonal matrices written out."""
    U, sigma, _ = torch.linalg.svd(R)
    S = torch.diag(sigma)
    inverse = torch.linalg.inv(S + APERTURE**-2 * torch.eye(len(R), dtype=R.dtype))
    C: Tensor = U @ (S @ inverse) @ U.mT
    return C


def matrix(R: Tensor) -> Tensor:
    return Conceptor.from_correlation(R, APERTURE).matrix()


def spectrum(R: Tensor) -> Tensor:
    return Conceptor.from_correlation(R, APERTURE).singular_values


@pytest.mark.parametrize(("dim", "rounds"), [(785, 7), (2048, 5), (4096, 3)])
def test_conceptor_of_a_correlation(
    benchmark: Any, rows: list[Row], small: bool, dim: int, rounds: int
) -> None:
    R = correlation(dim // 100 if small else dim)
    older = {"inverse and SVD": by_inverse_and_svd, "SVD of R": by_svd, "inverse only": by_inverse}
    wanted = matrix(R)
    for way in older.values():
        torch.testing.assert_close(way(R), wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(spectrum(R), torch.linalg.eigvalsh(wanted).flip(0))

    rivals = {name: partial(way, R) for name, way in older.items()}
    rivals["spectrum"] = partial(spectrum, R)
    ours, theirs = interleave(benchmark, partial(matrix, R), rivals, rounds=rounds)
    if benchmark.disabled:
        return
    with_spectrum = theirs.pop("spectrum")
    for what, taken in (("conceptor", ours), ("conceptor and spectrum", with_spectrum)):
        for name, seconds in theirs.items():
            aimed = what == "conceptor" and "SVD" in name
            ratio = seconds / taken
            rows.append(
                Row(
                    what,
                    f"d = {len(R)}",
                    name,
                    duration(taken),
                    duration(seconds),
                    f"{ratio:.1f}",
                    target(">= 4", ratio >= 4) if aimed else "",
                )
            )
    assert min(theirs["inverse and SVD"], theirs["SVD of R"]) >= 4 * ours
