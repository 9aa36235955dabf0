"""How fast every seed learns: as it began, more slowly once it stops getting better, or not at all.

The schedule is that of the GPM paper's code, for each seed by itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Schedule:
    """What each seed's gradients are multiplied by in one task.

    Attributes:
        pace: `[seeds]`, 1 at first (less for seeds of a smaller rate), 0 for seeds that have come
            to their end; its memory stays.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        settings: Any,
        rate: float,
        seeds: int,
        device: torch.device,
        shares: Tensor | None = None,
    ) -> None:
        """`shares` `[seeds]` of the rate that seeds begin with, 1 for the fastest."""
        self.pace = torch.ones(seeds, device=device)
        if shares is not None:
            self.pace *= shares.to(self.pace)
        self._alike = bool((self.pace == 1).all())
        self._settings, self._rate = settings, rate
        self._parameters = parameters
        self._lowest = torch.full_like(self.pace, torch.inf)  # validation loss, or - accuracy
        self._waited = torch.zeros_like(self.pace)  # checks since then
        self._looked = False
        self._best: list[Tensor] = []
        if settings.patience:
            self._best = [p.detach().clone() for p in self._parameters]

    @property
    def is_even(self) -> bool:
        """Whether all seeds go on as they began, whatever happens."""
        return self._alike and not (self._settings.patience or self._settings.stop_above)

    def going(self) -> list[bool]:
        return [pace > 0 for pace in self.pace.tolist()]

    @torch.no_grad()
    def apply(self) -> None:
        """To the gradients of this step."""
        if self.is_even:
            return
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad *= like(self.pace, parameter)

    @torch.no_grad()
    def check(self, accuracy: Tensor, loss: Tensor, goal: float) -> None:
        """After a look at validation samples, `[seeds]` each."""
        accuracy, loss = accuracy.to(self.pace), loss.to(self.pace)
        if self._settings.patience:
            by_loss = self._settings.judged == "loss"
            self._slow_down(loss if by_loss else (-accuracy).where(loss.isfinite(), torch.inf))
        self.pace *= accuracy <= goal

    def _slow_down(self, badness: Tensor) -> None:
        s, self._looked = self._settings, True
        going = self.pace > 0
        better = going & (badness < self._lowest)
        self._lowest = torch.where(better, badness, self._lowest)
        for best, parameter in zip(self._best, self._parameters):
            best.copy_(torch.where(like(better, parameter), parameter, best))
        self._waited = torch.where(better, 0.0, self._waited + 1)
        stuck = self._waited >= s.patience
        self._waited[stuck] = 0.0
        self.pace.copy_(torch.where(stuck, self.pace / s.rate_factor, self.pace))
        self.pace *= self.pace * self._rate >= s.least_rate

    def never_learned(self) -> Tensor:
        """Seeds `[seeds]` that no look found to have a loss at all; only known with patience."""
        found = self._lowest.isinf() if self._looked else self.pace.isnan()
        return found.cpu()

    @torch.no_grad()
    def finish(self) -> None:
        """Every seed has the weights that did best on its validation samples."""
        for best, parameter in zip(self._best, self._parameters):
            parameter.copy_(best)


def like(by_seed: Tensor, parameter: Tensor) -> Tensor:
    """`[seeds]` as `[seeds, 1, ...]`, to go with a parameter."""
    return by_seed.reshape(-1, *[1] * (parameter.ndim - 1))
