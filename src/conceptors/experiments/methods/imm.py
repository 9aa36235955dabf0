"""Incremental moment matching (Lee et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call

from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.fisher import LABELS, fisher
from conceptors.experiments.methods.schedule import like
from conceptors.experiments.methods.settings import Settings, setting


@dataclass(frozen=True)
class ImmSettings(Settings):
    mode: str = setting(
        "mode",
        "mean: average of the tasks' weights; mode: weighted by their Fisher",
        choices=("mean", "mode"),
    )
    share: float = setting(0.5, "weight of the last task; earlier ones share the rest", each=True)
    l2: float = setting(0.0, "L2-transfer: pull towards the last task's weights", each=True)
    drop: float = setting(0.0, "drop-transfer: chance that a neuron uses the last task's weights")
    restart: bool = setting(False, "begin every task at the initial weights: no weight-transfer")
    labels: str = setting("true", "where the Fisher's labels come from", LABELS)
    fisher_samples: int = setting(1000, "images a task for the Fisher")


class Imm(Learner):
    """Every task leaves a Gaussian over weights; tested is the mean or the mode of their mixture.

    Weight-transfer (start from the last task's weights) is on unless `restart`; L2-transfer and
    drop-transfer by their settings.
    """

    name: ClassVar[str] = "imm"
    about: ClassVar[str] = "incremental moment matching (Lee et al. 2017)"
    settings_type: ClassVar[type[Settings]] = ImmSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        s, shares = self.settings, self.each("share")
        if not bool(((shares > 0) & (shares <= 1)).all()) or not 0 <= s.drop < 1:
            raise ValueError(f"share must be in ]0, 1] and drop in [0, 1[, got {s.share}, {s.drop}")
        by_batch = s.batch if s.gradient != "mean" else 1
        self._shares = shares  # here, as steps may be recorded
        self._pulls = 2 * by_batch * self.each("l2")
        self._pulled = bool((self._pulls > 0).any())
        self.initial = [p.detach().clone() for p in self.model.parameters()]
        self.previous: list[Tensor] = []
        self.merged: list[Tensor] = []
        self.precision: list[Tensor] = []
        self.generators = [torch.Generator(device=self.device) for _ in self.seeds]

    def start_task(self, number: int) -> None:
        for generator, seed in zip(self.generators, self.seeds):
            generator.manual_seed(611_953 * (number + 1) + seed)
        if self.settings.restart:
            for parameter, value in zip(self.model.parameters(), self.initial):
                parameter.data.copy_(value)

    def forward(self, x: Tensor) -> Tensor:
        drop = self.settings.drop
        if not drop or not self.previous:
            return super().forward(x)
        mixed, draws = {}, {}
        for (name, parameter), old in zip(self.model.named_parameters(), self.previous):
            # whole neurons (rows) fall back to the last task's weights, the others make up for it
            layer = name.rpartition(".")[0]
            if layer not in draws:
                draws[layer] = self._draw(parameter)
            chance = draws[layer].reshape(
                *draws[layer].shape, *[1] * (parameter.ndim - draws[layer].ndim)
            )
            made_up = (parameter - drop * old) / (1 - drop)
            mixed[name] = torch.where(chance < drop, old, made_up)
        out: Tensor = functional_call(self.model, mixed, (x,))
        return out

    def _draw(self, weight: Tensor) -> Tensor:
        """A random number in [0, 1[ a neuron, drawn by each seed for itself."""
        return torch.stack(
            [torch.rand(weight.shape[1], generator=g, device=self.device) for g in self.generators]
        )

    def replayable(self) -> bool:
        return super().replayable() and not self.settings.drop  # it draws random numbers

    def gradients(self, number: int) -> None:
        if not self._pulled or not self.previous:
            return
        for parameter, old in zip(self.model.parameters(), self.previous):
            if parameter.grad is not None:
                pull = like(self._pulls, parameter).to(parameter)
                parameter.grad += pull * (parameter.detach() - old)

    def end_task(self, number: int) -> None:
        s = self.settings
        weights = [p.detach().clone() for p in self.model.parameters()]
        if s.mode == "mode":
            new = [f + 1e-8 for f in fisher(self, number, s.fisher_samples, s.labels)]
        else:
            new = [torch.ones_like(w) for w in weights]
        self.previous = weights
        if not self.merged:
            self.merged, self.precision = weights, new
            return
        for i, (weight, fresh) in enumerate(zip(weights, new)):
            share = like(self._shares, weight).to(weight)
            old, latest = (1 - share) * self.precision[i], share * fresh
            self.merged[i] = (old * self.merged[i] + latest * weight) / (old + latest)
            self.precision[i] = old + latest

    def stored_numbers(self) -> list[int]:
        """Merged weights; the last task's are where training goes on, all 1 needs no precision."""
        precision = self.precision if self.settings.mode == "mode" else []
        held = sum(t.numel() for t in (*self.merged, *precision))
        return [held // len(self.seeds)] * len(self.seeds)

    @contextmanager
    def weights_for_test(self) -> Iterator[None]:
        kept = [p.detach().clone() for p in self.model.parameters()]
        try:
            for parameter, value in zip(self.model.parameters(), self.merged or kept):
                parameter.data.copy_(value)
            yield
        finally:
            for parameter, value in zip(self.model.parameters(), kept):
                parameter.data.copy_(value)
