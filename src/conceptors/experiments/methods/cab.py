"""Conceptor-aided back-propagation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.algebra.conceptor import similarity
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.networks import StackedMLP
from conceptors.experiments.scenarios import Split
from conceptors.shield import Shield, ShieldFullWarning

_COMPARED = 10  # at most so many tasks are compared with each other


@dataclass(frozen=True)
class CabSettings(Settings):
    aperture: float = setting(9.0, "of the conceptors of all layers: larger protects more")
    input_aperture: float = setting(0.0, "aperture of the first layer, 0 for the same")
    hard: bool = setting(False, "hard conceptors: a direction is protected wholly or not at all")
    increment_decay: float = setting(0.0, "λ of Algorithm 2: pull towards the last task's weights")
    first_anchor: str = setting(
        "initial", "what that pull is towards in the first task", choices=("initial", "zero")
    )
    samples: int = setting(0, "images a task for the conceptors, 0 for all")
    reuse: bool = setting(False, "longer steps on tasks that are known in part: Shield.strides")
    claim_once: bool = setting(
        False, "what a known task shares with earlier ones is not claimed again"
    )


class Cab(Learner):
    """Every layer's gradient is projected onto the space that earlier tasks left free."""

    name: ClassVar[str] = "cab"
    about: ClassVar[str] = "conceptor-aided back-propagation (He & Jaeger 2017)"
    settings_type: ClassVar[type[Settings]] = CabSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        s = self.settings
        first = next(name for name, m in self.model.named_modules() if hasattr(m, "weight"))
        apertures = {first: s.input_aperture or s.aperture, "*": s.aperture}
        self.shield = Shield(
            self.model,
            apertures,
            hard=s.hard,
            increment_decay=s.increment_decay,
            rows=None,
            warn_at_quota=1.0,
            keep_tasks=len(self.scenario.tasks) <= _COMPARED,
        )
        if s.first_anchor == "zero":
            state = self.shield.state_dict()
            state["anchors"] = {name: torch.zeros_like(a) for name, a in state["anchors"].items()}
            self.shield.load_state_dict(state, strict=False)

    def start_task(self, number: int) -> None:
        """How much of the task is known, and how long steps may be."""
        s = self.settings
        self.known = torch.zeros(len(self.seeds))
        self.strides: dict[str, Tensor] = {}
        if not number or not (s.reuse or s.claim_once):
            return
        task = self.scenario.tasks[number]
        split, chance = task.train, 1 / self.scenario.classes
        if self.scenario.heads and task.classes is not None:
            chance = 1 / int(task.classes[0].sum())
        right = self.accuracy(split, number, s.validation) / 100
        self.known = ((right - chance) / (1 - chance)).clamp(0, 1)
        if s.reuse:
            known = self.known if self._by_seed() else float(self.known.mean())
            self.strides = self.shield.strides(self._batches(split, number), known)
        self._record_reuse()

    def guarded(self, optimizer: torch.optim.Optimizer, finish: Callable[[], None]) -> None:
        layers = dict(self.model.named_modules())
        scaled = [
            (parameter, self._factors(parameter, factors))
            for name, factors in self.strides.items()
            for parameter in layers[name].parameters(recurse=False)
        ]

        def between() -> None:
            finish()
            for parameter, factor in scaled:  # of SGD: as if its rate were larger
                if parameter.grad is not None:
                    parameter.grad *= factor

        self.shield.guard(optimizer, between=between if scaled else finish)

    def _factors(self, parameter: Tensor, factors: Tensor) -> Tensor:
        """One for each seed of stacked layers; else one, the most careful of a layer's groups."""
        if not self._by_seed():
            return factors.min().to(parameter)
        return factors.to(parameter).reshape(-1, *[1] * (parameter.ndim - 1))

    def _by_seed(self) -> bool:
        """Whether the groups of all layers are seeds."""
        return isinstance(self.model, StackedMLP)

    def learn(self, number: int) -> list[dict[str, Any]]:
        with warnings.catch_warnings():  # quotas are in the results; little room is the point here
            warnings.simplefilter("ignore", ShieldFullWarning)
            return super().learn(number)

    def drifts(self) -> bool:
        return super().drifts() or bool(self.settings.increment_decay > 0)

    def end_task(self, number: int) -> None:
        batches = self._batches(self.scenario.tasks[number].train, number)
        known: float | Tensor = 0.0
        if self.settings.claim_once:
            known = self.known if self._by_seed() else float(self.known.mean())
        self.shield.remember(batches, known=known)
        self._record_quotas()

    def _batches(self, split: Split, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Samples for the conceptors, drawn by each seed for itself, as many for every seed."""
        count = min(split.sizes())
        if self.settings.samples:
            count = min(count, self.settings.samples)
        drawn = []
        for size, seed in zip(split.sizes(), self.seeds):
            generator = torch.Generator().manual_seed(224_737 * (number + 1) + seed)
            drawn.append(torch.randperm(size, generator=generator)[:count])
        for places in torch.stack(drawn).to(self.device).split(1000, dim=1):
            yield split.take(places)

    def _record_reuse(self) -> None:
        """What is known of every task from the second on, and strides, for the results."""
        for i, extra in enumerate(self.extras):
            extra.setdefault("known", []).append(round(float(self.known[i]), 4))
            for number, (name, factors) in enumerate(self.strides.items()):
                own = factors[i] if self._by_seed() else factors.min()
                held = extra.setdefault("strides", {}).setdefault(self._label(name, number), [])
                held.append(round(float(own), 3))

    def _label(self, name: str, number: int) -> str:
        if not isinstance(self.model, StackedMLP):
            return name
        return f"hidden {number}" if number else "input"

    def _record_quotas(self) -> None:
        """Quotas, spectra and the tasks' similarity at the input, for the results."""
        for number, (name, conceptor) in enumerate(self.shield.conceptors().items()):
            label = self._label(name, number)
            values = conceptor.singular_values
            for i, extra in enumerate(self.extras):
                own = values[i] if len(values) == len(self.extras) else values.flatten()
                extra.setdefault("quota", {}).setdefault(label, []).append(float(own.mean()))
                shown = [round(v, 5) for v in own.tolist()]
                extra.setdefault("spectra", {}).setdefault(label, []).append(shown)
        shares = self.shield.tasks()
        if not shares:
            return
        first = next(iter(shares[-1]))
        if len(shares) == len(self.scenario.tasks) <= _COMPARED and len(self.seeds) == len(
            shares[-1][first].singular_values
        ):
            found = torch.stack(
                [torch.stack([similarity(a[first], b[first]) for b in shares]) for a in shares], -1
            )  # [tasks, seeds, tasks]
            for i, extra in enumerate(self.extras):
                extra["similarity"] = [[round(v, 4) for v in row] for row in found[:, i].tolist()]
