"""Apertures chosen anew for every task and layer: by themselves, a quota, or energy to retain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from conceptors._internal import checks

_ROUNDING = 1e-12  # share of the energy that float32 may add by itself, after some layers
CLAIMED = 0.9  # of the energy, by a soft shield that is not told a share


@dataclass(frozen=True)
class Auto:
    """What `aperture="auto"` stands for: energy is claimed, and drift is pulled back.

    The aperture is such that E xᵀ C x = share · E|x|², whatever the scale of the rows x. While a
    later task is learned, every layer is drawn back to what it did on the remembered rows by the
    gradient of pull/2 · E|ΔW x|² / E|W x|², summed over the tasks: pull/2 is what it costs to
    change all that a layer gave out on a task's data. The loss is taken to be of the usual size,
    about one when a task begins.

    A hard shield lets nothing move that it claims, so that nothing is pulled. It is asked to keep
    what was learned: if no share is named, it claims all that is more than rounding, `Energy(1)`.

    Attributes:
        share: of the energy; None for 0.9, or all if hard.
        pull: see above.
        room: of every layer's inputs that is left to steps, however much is claimed. For many
            tasks: where a layer is fuller, all its odds are made smaller alike for the projection,
            and the pull goes on as before. Layers of one or two inputs a group, as norms are, leave
            none.
    """

    share: float | None = None
    pull: float = 20.0
    room: float = 0.2

    def __post_init__(self) -> None:
        if self.share is not None:
            checks.number(self.share, "Auto share", 0.0, 1.0, open_low=True)
        checks.number(self.pull, "Auto pull", 0.0, float("inf"))
        checks.number(self.room, "Auto room", 0.0, 1.0)
        if self.room == 1.0:
            raise ValueError("Auto room must be less than 1: then nothing would be claimed")
        if self.share == 1.0:
            raise ValueError("Auto share must be less than 1: all energy is never claimed softly")

    def aperture(self, sigma: Tensor, dim: int, hard: bool, rounding: float = _ROUNDING) -> Tensor:
        """α `[g]` for the largest eigenvalues `[g, <= d]`, descending, of R `[g, d, d]`."""
        if hard:
            wanted = Energy(1.0 if self.share is None else self.share)
            return wanted.aperture(sigma, dim, hard, rounding)
        total = sigma.sum(-1, keepdim=True).clamp_min(torch.finfo(sigma.dtype).tiny)
        share = (sigma / total).cpu()
        goal = CLAIMED if self.share is None else self.share
        return _solve(sigma, lambda s: (s * share).sum(-1), goal)


@dataclass(frozen=True)
class Quota:
    """Every task claims this share of each layer's input space (or all it occupies, if less)."""

    share: float

    def __post_init__(self) -> None:
        checks.number(self.share, "Quota", 0.0, 1.0, open_low=True)

    def aperture(self, sigma: Tensor, dim: int, hard: bool, rounding: float = _ROUNDING) -> Tensor:
        """α `[g]` for the largest eigenvalues `[g, <= d]`, descending, of R `[g, d, d]`."""
        if hard:
            count = max(1, round(self.share * dim))
            return _between(sigma, torch.full(sigma.shape[:-1], count))
        return _solve(sigma, lambda s: s.sum(-1) / dim, self.share)


@dataclass(frozen=True)
class Energy:
    """Every task's conceptor retains this share of the energy of its rows, E|C x|² / E|x|².

    A hard one may retain all of it, `Energy(1)`: every direction that is more than rounding.
    """

    share: float

    def __post_init__(self) -> None:
        checks.number(self.share, "Energy", 0.0, 1.0, open_low=True)

    def aperture(self, sigma: Tensor, dim: int, hard: bool, rounding: float = _ROUNDING) -> Tensor:
        """α `[g]` for the largest eigenvalues `[g, <= d]`, descending, of R `[g, d, d]`."""
        total = sigma.sum(-1, keepdim=True).clamp_min(torch.finfo(sigma.dtype).tiny)
        if hard:
            reached = sigma.cumsum(-1) / total
            enough = min(self.share * (1 - _ROUNDING), 1 - rounding)
            return _between(sigma, (reached < enough).sum(-1) + 1)
        share = (sigma / total).cpu()
        return _solve(sigma, lambda s: (s.square() * share).sum(-1), self.share)


@dataclass(frozen=True)
class ByGroup:
    """A number for every group of a layer, such as the networks of a stack.

    Where a layer has several times as many groups, each number is for as many that follow each
    other.
    """

    apertures: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.apertures:
            raise ValueError("ByGroup needs at least one aperture")
        for value in self.apertures:
            checks.number(value, "aperture", 0.0, float("inf"))

    def of(self, groups: int) -> Tensor:
        """α `[g]`."""
        each, over = divmod(groups, len(self.apertures))
        if over:
            raise ValueError(
                f"{len(self.apertures)} apertures cannot be shared by {groups} groups; give one "
                f"for each, or a number for all"
            )
        return torch.tensor(self.apertures, dtype=torch.float64).repeat_interleave(each)


def slack(values: Tensor, dim: int, room: float) -> Tensor:
    """By what to multiply the odds of singular values `[g, r]` of d, to leave room; `[g]`.

    1 where the mean singular value is 1 - room or less already, or cannot be: singular values of
    exactly 1 stay. As apertures are the roots of odds, this is aperture adaptation.

    >>> s = torch.tensor([[0.9, 0.9], [0.5, 0.0]])
    >>> slack(s, dim=2, room=0.25)
    tensor([0.3333, 1.0000])
    """
    hard = values == 1
    odds = torch.where(hard, 0.0, values / (1 - values)).double()
    ordered = odds.sort(-1, descending=True).values
    fixed = hard.sum(-1) / dim
    found = _solve(ordered, lambda s: s.sum(-1) / dim + fixed.cpu(), 1 - room).square()
    full = (values.sum(-1) / dim > 1 - room) & (fixed < 1 - room)
    return torch.where(full, found.to(values), 1.0)


def _between(sigma: Tensor, count: Tensor) -> Tensor:
    """The aperture at which exactly the `count` largest directions have s >= 1/2."""
    tiny = torch.finfo(sigma.dtype).eps * sigma[..., :1].clamp_min(1e-300)
    padded = torch.cat([sigma, torch.zeros_like(sigma[..., :1])], -1)
    index = count.to(sigma.device).clamp(1, sigma.shape[-1]).unsqueeze(-1)
    last = padded.take_along_dim(index - 1, -1)
    following = padded.take_along_dim(index, -1).clamp_min(tiny)
    edge = torch.maximum(last, tiny).sqrt() * following.clamp_max(torch.maximum(last, tiny)).sqrt()
    found: Tensor = edge.squeeze(-1).rsqrt()
    return found


def _solve(sigma: Tensor, rises: Callable[[Tensor], Tensor], goal: float) -> Tensor:
    """Bisection on log α, all groups at once; ends at the largest aperture if out of reach.

    On the CPU, as a GPU would wait for the many small calls.
    """
    device, sigma = sigma.device, sigma.cpu()
    top = sigma[..., 0].clamp_min(1e-300)
    low, high = -0.5 * top.log() - 20, -0.5 * top.log() + 20
    for _ in range(56):
        middle = (low + high) / 2
        values = sigma / (sigma + torch.exp(-2 * middle).unsqueeze(-1))
        under = rises(values) < goal
        low, high = torch.where(under, middle, low), torch.where(under, high, middle)
    return ((low + high) / 2).exp().to(device)
