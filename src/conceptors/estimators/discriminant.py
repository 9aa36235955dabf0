"""Linear discriminant analysis of a readout's scores, from the same sums.

Regressed scores f = W b have, over samples of class k, means M_k and, pooled over classes, a
covariance S. For a sample that was not learned, both are as of f - h / (1 - h) (y - f) with
h = tr C / n: M' = (M - h I) / (1 - h) and S' = S / (1 - h)². If scores were normal with these, the
log-likelihood of class k is

    M'_kᵀ S'⁻¹ f - M'_kᵀ S'⁻¹ M'_k / 2 + log p_k,

up to what all classes share: again linear in b. This is discriminant analysis by optimal scoring
(Hastie, Buja & Tibshirani 1995), with S' drawn towards a multiple of I.
"""

from __future__ import annotations

import torch
from torch import Tensor

from conceptors._internal.precision import exactly
from conceptors.estimators.solve import Solution
from conceptors.estimators.sums import Sums

_LEAST = 0.3  # times the mean variance of scores, added to all: samples tell little of a large S
_NEVER = -1e4  # log-likelihood of a class that was never seen


@exactly()
def likelihoods(sums: Sums, solution: Solution) -> Tensor:
    """Weights `[m, d]` of rows b that end in 1, to log-likelihoods of m classes."""
    weights, n = solution.weights, sums.count
    seen = sums.squares > 0
    if int(seen.sum()) < 2:
        return weights
    W, counts = weights[seen], sums.squares[seen]
    left = max(1 - solution.quota * sums.dim / n, 0.05)
    means = (sums.cross[seen] / counts[:, None]) @ W.mT  # [class, score]
    within = W @ (sums.gram @ W.mT) / n - (means.mT * (counts / n)) @ means
    eye = torch.eye(len(W), dtype=W.dtype, device=W.device)
    means = (means - (1 - left) * eye) / left
    within = (within + within.mT) / (2 * left**2)
    within += eye * within.diagonal().mean().clamp_min(1e-12) * _LEAST
    pull = torch.linalg.solve(within, means.mT).mT  # M' S'⁻¹
    found = torch.zeros_like(weights)
    made = pull @ W
    made[:, -1] += (counts / n).log() - (pull * means).sum(1) / 2
    found[seen] = made
    found[~seen, -1] = _NEVER
    return found
