"""Choosing an aperture: by a wanted quota, by the largest gradient, or by cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.targets import Quota


def aperture_for_quota(correlation: Tensor, quota: float) -> float:
    """The aperture at which the conceptor of R `[d, d]` claims the share `quota` of the space.

    One eigvalsh, then bisection on log α: Σ σ / (σ + α⁻²) / d grows with α. Largest quota within
    reach is rank(R) / d.

    Raises:
        ValueError: quota outside ]0, 1[ or beyond the rank of R.

    >>> import torch
    >>> R = torch.diag(torch.tensor([4.0, 1.0, 0.25]))
    >>> alpha = aperture_for_quota(R, 0.5)
    >>> round(alpha, 6), round(float(Conceptor.from_correlation(R, alpha).quota), 6)
    (1.0, 0.5)
    """
    quota = checks.number(quota, "quota", 0.0, 1.0, open_low=True)
    sigma = _eigenvalues(correlation)
    reach = int((sigma > 0).sum()) / len(sigma)
    if quota >= reach:
        raise ValueError(
            f"quota {quota:g} cannot be reached: the correlation matrix has rank "
            f"{int((sigma > 0).sum())} of {len(sigma)}, so quotas stay below {reach:g}"
        )
    return float(Quota(quota).aperture(sigma.flip(0), len(sigma), hard=False))


def aperture_by_gradient(correlation: Tensor) -> float:
    """The aperture at which ‖C(α)‖² changes fastest with log α: the ∇-criterion of Jaeger (2014).

    d‖C‖² / d log α = 4 Σ s² (1 - s); every maximum on a fine grid is refined by golden section.

    >>> import torch
    >>> round(aperture_by_gradient(torch.eye(3)), 4)  # 4 s² (1 - s) is largest at s = 2/3
    1.4142
    """
    sigma = _eigenvalues(correlation)
    if not bool((sigma > 0).any()):
        raise ValueError("the correlation matrix is zero; no aperture tells anything about it")

    def gradient(log: float) -> float:
        s = _values(sigma, log)
        return float((s.square() * (1 - s)).sum())

    grid = torch.linspace(*_log_range(sigma), 400, dtype=torch.float64).tolist()
    slopes = [gradient(log) for log in grid]
    peaks = [i for i in range(1, 399) if slopes[i - 1] <= slopes[i] >= slopes[i + 1]]
    refined = [_golden_section(gradient, grid[i - 1], grid[i + 1]) for i in peaks]
    return math.exp(max(refined, key=gradient))


class ApertureChoice(NamedTuple):
    """What `aperture_by_validation` found: the best aperture, and mean and sd of every score."""

    aperture: float
    apertures: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]


def aperture_by_validation(
    states: Tensor,
    score: Callable[[Conceptor, Tensor], float],
    apertures: Sequence[float] = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256),
    *,
    folds: int = 5,
    seed: int = 0,
) -> ApertureChoice:
    """The aperture of the best mean score on held-out rows (the paper's way).

    Args:
        states: rows `[n, d]`; shuffled with `seed` and cut into `folds` parts.
        score: called with the conceptor of the other parts and the held-out rows; larger is
            better.
        apertures: candidates. Each fold is factored once, whatever their number.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> clean = torch.randn(200, 2, dtype=torch.float64) @ torch.tensor(
    ...     [[3.0, 0, 0, 0], [0, 3.0, 0, 0]], dtype=torch.float64)
    >>> noisy = clean + 0.3 * torch.randn(200, 4, dtype=torch.float64)
    >>> def denoised(C, X):  # how well projected noise-added rows match the rows
    ...     noise = torch.ones_like(X) * torch.tensor([0, 0, 1.0, 1.0], dtype=X.dtype)
    ...     return -float((C @ (X + noise) - X).square().mean())
    >>> 0.5 < aperture_by_validation(noisy, denoised).aperture < 2.5
    True
    """
    rows = checks.states(states)
    if rows.ndim != 2:
        raise ValueError(f"states must have shape [n, d], got {list(rows.shape)}")
    if len(rows) < 2:
        raise ValueError("cross-validation needs at least 2 rows, got 1")
    folds = checks.whole(folds, "folds", 2, len(rows))
    candidates = [float(checks.aperture(a, torch.Size(()), rows)) for a in apertures]
    if not candidates:
        raise ValueError("apertures is empty; give at least one candidate")
    generator = torch.Generator().manual_seed(checks.whole(seed, "seed", 0, 2**63 - 1))
    order = torch.randperm(len(rows), generator=generator)
    parts = order.to(rows.device).tensor_split(folds)
    scores = torch.empty(len(parts), len(candidates), dtype=torch.float64)
    for i, held_out in enumerate(parts):
        rest = torch.cat([part for j, part in enumerate(parts) if j != i])
        unit = Conceptor.from_states(rows[rest], 1.0)
        for k, candidate in enumerate(candidates):
            value = float(score(unit.adapt(candidate), rows[held_out]))
            if math.isnan(value):
                raise ValueError(f"score gave NaN at aperture {candidate:g}, fold {i}")
            scores[i, k] = value
    mean, std = scores.mean(0), scores.std(0)
    best = int(mean.argmax())
    return ApertureChoice(
        candidates[best], tuple(candidates), tuple(mean.tolist()), tuple(std.tolist())
    )


def _eigenvalues(correlation: Tensor) -> Tensor:
    """Eigenvalues of R in float64 on the CPU; those of rounding size are 0, as in a conceptor."""
    matrix = checks.positive_semidefinite(correlation, "correlation")
    if matrix.ndim != 2:
        raise ValueError(f"one matrix [d, d] is needed, got shape {list(matrix.shape)}")
    sigma = torch.linalg.eigvalsh(matrix.double().cpu())
    rounding = spectra.tolerance(len(sigma), sigma.dtype) * sigma[-1].clamp_min(0)
    return torch.where(sigma > rounding, sigma, 0.0)


def _values(sigma: Tensor, log_aperture: float) -> Tensor:
    """s = σ / (σ + α⁻²), for any log σ and log α without overflow."""
    return torch.sigmoid(sigma.log() + 2 * log_aperture)


def _log_range(sigma: Tensor) -> tuple[float, float]:
    """log α from where all s are negligible to where all s of positive σ are nearly 1."""
    positive = sigma[sigma > 0]
    return -0.5 * math.log(float(positive.max())) - 20, -0.5 * math.log(float(positive.min())) + 20


def _golden_section(of: Callable[[float], float], low: float, high: float) -> float:
    golden = (math.sqrt(5) - 1) / 2
    while high - low > 1e-10:
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (left, high) if of(left) < of(right) else (low, right)
    return (low + high) / 2
