"""Ways to choose an aperture: rules for tasks and layers, a given quota, cross-validation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conceptors._internal import checks
from conceptors.algebra import spectrum as spectra
from conceptors.algebra.checks import check_states
from conceptors.algebra.conceptor import Conceptor

_ROUNDING = 1e-12  # share of the energy that rounding in float32 may add after several layers
PROTECTED = 0.85  # share of the energy that a soft shield protects by default


@dataclass(frozen=True)
class Auto:
    """Choose each layer's aperture from the energy of its inputs, and pull drift back.

    `Shield(model)` uses `Auto()`. The aperture solves E xᵀ C x = share · E|x|² for the layer's
    inputs x, so their scale does not matter. While a later task is learned, the gradient of
    pull / 2 · E|ΔW x|² / E|W x|², summed over earlier tasks, pulls each layer back to its old
    outputs. Changing all outputs on one task costs pull / 2, and in proportion less where the first
    gradients of a task show that its loss is far below a usual cross-entropy.

    A hard shield changes no protected direction, so it needs no pull.

    Args:
        share: share of each task's energy that is protected, above 0 and below 1. The default is
            0.85; for a hard shield it is everything above rounding, as with `Energy(1)`.
        pull: strength of the pull, at least 0; 0 turns it off.
        room: share of each layer's input space that stays free, at least 0 and below 1. In a
            fuller layer all odds are scaled down alike for the projection, but not for the pull.
            Layers with one or two inputs per group, such as norms, are exempt.

    >>> Auto(pull=0)
    Auto(share=None, pull=0, room=0.2)
    """

    share: float | None = None
    pull: float = 20.0
    room: float = 0.2

    def __post_init__(self) -> None:
        if self.share is not None:
            checks.number(self.share, "Auto share", 0.0, 1.0, open_low=True, open_high=True)
        checks.number(self.pull, "Auto pull", 0.0, math.inf)
        checks.number(self.room, "Auto room", 0.0, 1.0, open_high=True)

    def aperture(self, sigma: Tensor, dim: int, hard: bool, rounding: float = _ROUNDING) -> Tensor:
        """α `[g]` for the largest eigenvalues `[g, <= d]`, descending, of R `[g, d, d]`."""
        if hard:
            energy = Energy(1.0 if self.share is None else self.share)
            return energy.aperture(sigma, dim, hard, rounding)
        return _solve(sigma, _shares(sigma), PROTECTED if self.share is None else self.share)


@dataclass(frozen=True)
class Quota:
    """Choose apertures so that every task uses a given share of each layer's input space.

    A task whose inputs span less than this share uses all that they span.

    Args:
        share: mean singular value of the task's conceptor, above 0 and at most 1.
    """

    share: float

    def __post_init__(self) -> None:
        checks.number(self.share, "Quota", 0.0, 1.0, open_low=True)

    def aperture(self, sigma: Tensor, dim: int, hard: bool, rounding: float = _ROUNDING) -> Tensor:
        if hard:
            count = max(1, round(self.share * dim))
            return _between(sigma, torch.full(sigma.shape[:-1], count))
        return _solve(sigma, torch.full_like(sigma, 1 / dim), self.share)


@dataclass(frozen=True)
class Energy:
    """Choose apertures so that every task's conceptor retains a given share of the energy.

    Args:
        share: E|C x|² / E|x|² of the layer's inputs x, above 0 and at most 1. With a hard shield,
            `Energy(1)` retains every direction above rounding.
    """

    share: float

    def __post_init__(self) -> None:
        checks.number(self.share, "Energy", 0.0, 1.0, open_low=True)

    def aperture(self, sigma: Tensor, dim: int, hard: bool, rounding: float = _ROUNDING) -> Tensor:
        if hard:
            enough = min(self.share * (1 - _ROUNDING), 1 - rounding)
            return _between(sigma, (_shares(sigma).cumsum(-1) < enough).sum(-1) + 1)
        return _solve(sigma, _shares(sigma), self.share, power=2)


def slack(values: Tensor, dim: int, room: float) -> Tensor:
    """Return the factor `[g]` by which odds must shrink so that a share `room` stays free.

    `values` are singular values `[g, r]` of d. The factor is 1 where enough is free, or where
    singular values of exactly 1, which cannot shrink, fill the space.

    >>> s = torch.tensor([[0.9, 0.9], [0.5, 0.0]])
    >>> slack(s, dim=2, room=0.25)
    tensor([0.3333, 1.0000])
    """
    hard = values == 1
    odds = torch.where(hard, 0.0, values / (1 - values)).double()
    fixed = hard.sum(-1) / dim
    factor = _solve(odds, torch.full_like(odds, 1 / dim), 1 - room - fixed).square()
    is_full = (values.sum(-1) / dim > 1 - room) & (fixed < 1 - room)
    return torch.where(is_full, factor.to(values), 1.0)


def aperture_for_quota(correlation: Tensor, quota: float) -> float:
    """Find the aperture at which the conceptor of a correlation matrix has a given quota.

    Solves (1 / d) Σ σ / (σ + α⁻²) = quota for α, with the eigenvalues σ of R `[d, d]`.

    Raises:
        ValueError: the quota is not above 0 and below rank(R) / d.

    >>> import torch
    >>> from conceptors import Conceptor
    >>> R = torch.diag(torch.tensor([4.0, 1.0, 0.25]))
    >>> alpha = aperture_for_quota(R, 0.5)
    >>> round(alpha, 6), round(float(Conceptor.from_correlation(R, alpha).quota), 6)
    (1.0, 0.5)
    """
    quota = checks.number(quota, "quota", 0.0, 1.0, open_low=True)
    matrix = checks.positive_semidefinite(correlation, "correlation")
    if matrix.ndim != 2:
        raise ValueError(f"correlation must be one matrix [d, d], got {list(matrix.shape)}")
    sigma = spectra.from_eigen(torch.linalg.eigvalsh(matrix.double().cpu()), matrix).odds
    rank = int((sigma > 0).sum())
    if quota >= rank / len(sigma):
        raise ValueError(
            f"quota {quota:g} cannot be reached: the correlation matrix has rank {rank} of "
            f"{len(sigma)}; choose a quota below {rank / len(sigma):g}"
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
    """Find the aperture with the best mean score in k-fold cross-validation.

    Args:
        states: samples in rows, `[n, d]`.
        score: `score(conceptor, rows)` rates the conceptor of the training folds on held-out rows;
            larger is better.
        apertures: candidates. Each fold is factored once, however many there are.
        folds, seed: number of folds, from 2 to n, and seed of the shuffle.

    Raises:
        ValueError: fewer than 2 rows, no candidate, or a score of NaN.

    >>> import torch
    >>> X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> aperture_by_validation(X, lambda C, rows: -abs(float(C.quota) - 0.5), [0.1, 1.0, 10.0])
    1.0
    """
    rows = check_states(states)
    if rows.ndim != 2:
        raise ValueError(f"states must have shape [n, d], got {list(rows.shape)}")
    if len(rows) < 2:
        raise ValueError("cross-validation needs at least 2 rows, got 1; pass more samples")
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
                raise ValueError(f"score is NaN at aperture {candidate:g}, fold {i}; check score")
            totals[k] += value
    return candidates[totals.index(max(totals))]


def _shares(sigma: Tensor) -> Tensor:
    """Divide eigenvalues by their sum."""
    return sigma / sigma.sum(-1, keepdim=True).clamp_min(torch.finfo(sigma.dtype).tiny)


def _between(sigma: Tensor, count: Tensor) -> Tensor:
    """The aperture at which exactly the `count` largest directions have s >= 1/2."""
    tiny = torch.finfo(sigma.dtype).eps * sigma[..., :1].clamp_min(1e-300)
    padded = torch.cat([sigma, torch.zeros_like(sigma[..., :1])], -1)
    index = count.to(sigma.device).clamp(1, sigma.shape[-1]).unsqueeze(-1)
    last = torch.maximum(padded.take_along_dim(index - 1, -1), tiny)
    following = padded.take_along_dim(index, -1).clamp_min(tiny)
    edge: Tensor = last.sqrt() * following.clamp_max(last).sqrt()
    return edge.squeeze(-1).rsqrt()


def _solve(sigma: Tensor, weight: Tensor, goal: float | Tensor, power: int = 1) -> Tensor:
    """Solve Σ weight · sᵖ = goal for α in all groups; an unreachable goal gives the largest α.

    Newton steps on the odds of both sides in log α, exact for a single direction; bisection where
    they leave the bracket. This runs on the CPU, as a GPU would wait for the many small calls.
    """
    device, sigma, weight = sigma.device, sigma.cpu(), weight.cpu()
    aim = torch.as_tensor(goal, dtype=sigma.dtype).cpu().expand(sigma.shape[:-1])
    top = -0.5 * sigma.amax(-1).clamp_min(1e-300).log()
    low, high, x = top - 20, top + 20, top
    for _ in range(56):
        s = sigma / (sigma + torch.exp(-2 * x).unsqueeze(-1))
        parts = weight * s**power
        value, slope = parts.sum(-1), 2 * power * (parts * (1 - s)).sum(-1)
        low, high = torch.where(value < aim, x, low), torch.where(value < aim, high, x)
        step = (torch.logit(aim) - torch.logit(value)) * value * (1 - value) / slope
        is_inside = (x + step >= low) & (x + step <= high)
        before, x = x, torch.where(is_inside, x + step, (low + high) / 2)
        if bool(((x - before).abs() < 1e-14 * (1 + x.abs())).all()):
            break
    return x.exp().to(device)
