"""Choosing an aperture for one correlation matrix or data set: by quota, or by cross-validation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.conceptor import Conceptor
from conceptors.algebra.targets import Quota


def aperture_for_quota(correlation: Tensor, quota: float) -> float:
    """The aperture at which the conceptor of R `[d, d]` claims the share `quota` of the space.

    One eigvalsh, then bisection on log α: Σ σ / (σ + α⁻²) / d grows with α. The quota stays below
    rank(R) / d.

    Raises:
        ValueError: quota outside ]0, 1[ or beyond the rank of R.

    >>> import torch
    >>> R = torch.diag(torch.tensor([4.0, 1.0, 0.25]))
    >>> alpha = aperture_for_quota(R, 0.5)
    >>> round(alpha, 6), round(float(Conceptor.from_correlation(R, alpha).quota), 6)
    (1.0, 0.5)
    """
    quota = checks.number(quota, "quota", 0.0, 1.0, open_low=True)
    matrix = checks.positive_semidefinite(correlation, "correlation")
    if matrix.ndim != 2:
        raise ValueError(f"one matrix [d, d] is needed, got shape {list(matrix.shape)}")
    sigma = torch.linalg.eigvalsh(matrix.double().cpu())
    rounding = spectra.tolerance(len(sigma), sigma.dtype) * sigma[-1].clamp_min(0)
    sigma = torch.where(sigma > rounding, sigma, 0.0)
    rank = int((sigma > 0).sum())
    if quota >= rank / len(sigma):
        raise ValueError(
            f"quota {quota:g} cannot be reached: the correlation matrix has rank {rank} of "
            f"{len(sigma)}, so quotas stay below {rank / len(sigma):g}"
        )
    return float(Quota(quota).aperture(sigma.flip(0), len(sigma), hard=False))


def aperture_by_validation(
    states: Tensor,
    score: Callable[[Conceptor, Tensor], float],
    apertures: Sequence[float] = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256),
    *,
    folds: int = 5,
    seed: int = 0,
) -> float:
    """The aperture with the best mean score on held-out rows, as the paper chooses it.

    Args:
        states: rows `[n, d]`; shuffled with `seed` and cut into `folds` parts.
        score: called with the conceptor of the other parts and the held-out rows; larger is
            better.
        apertures: candidates. Each fold is factored once, whatever their number.

    >>> import torch
    >>> X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> aperture_by_validation(X, lambda C, rows: -abs(float(C.quota) - 0.5), [0.1, 1.0, 10.0])
    1.0
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
    totals = [0.0] * len(candidates)
    for i, held_out in enumerate(parts):
        training = torch.cat([part for j, part in enumerate(parts) if j != i])
        unit = Conceptor.from_states(rows[training], 1.0)
        for k, candidate in enumerate(candidates):
            value = float(score(unit.adapt(candidate), rows[held_out]))
            if math.isnan(value):
                raise ValueError(f"score returned NaN at aperture {candidate:g}, fold {i}")
            totals[k] += value
    return candidates[totals.index(max(totals))]
