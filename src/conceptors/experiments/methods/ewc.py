"""Elastic weight consolidation (Kirkpatrick et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.fisher import LABELS, fisher
from conceptors.experiments.methods.schedule import like
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class EwcSettings(Settings):
    strength: float = setting(15.0, "weight of the Fisher penalty", each=True)
    labels: str = setting("all", "where the Fisher's labels come from", LABELS)
    online: bool = setting(False, "one running Fisher, anchored at the last task")
    fade: float = setting(1.0, "how much of the running Fisher stays (online)")
    fisher_samples: int = setting(1000, "images a task for the Fisher")


class Ewc(Learner):
    """(strength / 2) Σ_k F_k (θ - θ_k)², F_k the Fisher diagonal of task k.

    The sum over tasks needs only ΣF and ΣF θ_k: its gradient is strength (ΣF θ - ΣF θ_k).
    """

    name: ClassVar[str] = "ewc"
    about: ClassVar[str] = "elastic weight consolidation (Kirkpatrick et al. 2017)"
    settings_type: ClassVar[type[Settings]] = EwcSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.fishers = [torch.zeros_like(p) for p in self.model.parameters()]
        self.pulls = [torch.zeros_like(p) for p in self.model.parameters()]
        s = self.settings
        by_batch = s.batch if s.gradient != "mean" else 1
        self._scales = by_batch * self.each("strength")  # here, as steps may be recorded

    def gradients(self, number: int) -> None:
        if not number:
            return
        for parameter, total, pull in zip(self.model.parameters(), self.fishers, self.pulls):
            if parameter.grad is not None:
                away = total * parameter.detach() - pull
                parameter.grad += like(self._scales, parameter).to(parameter) * away

    def end_task(self, number: int) -> None:
        s = self.settings
        found = fisher(self, number, s.fisher_samples, s.labels)
        for i, parameter in enumerate(self.model.parameters()):
            if s.online:
                self.fishers[i] = s.fade * self.fishers[i] + found[i]
                self.pulls[i] = self.fishers[i] * parameter.detach()
            else:
                self.fishers[i] = self.fishers[i] + found[i]
                self.pulls[i] = self.pulls[i] + found[i] * parameter.detach()

    def stored_numbers(self) -> list[int]:
        held = sum(t.numel() for t in (*self.fishers, *self.pulls))
        return [held // len(self.seeds)] * len(self.seeds)
