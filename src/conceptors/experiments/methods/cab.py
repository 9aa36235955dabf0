"""Conceptor-aided back-propagation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from conceptors.algebra.conceptor import similarity
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.networks import AlexNet, StackedMLP
from conceptors.experiments.scenarios import Split
from conceptors.shield import Shield, ShieldFullWarning

_COMPARED = 10  # at most so many tasks are compared with each other
_DRAWN = 1024  # inputs up to which layers have spectra, which take long to find, beside quotas


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
    rows: int = setting(0, "rows of a layer of a thousand images for them, 0 for all")
    project: str = setting(
        "auto",
        "gradients, or the inputs of linear layers, which is less work for small batches; auto: "
        "inputs in convolutional networks",
        choices=("auto", "gradients", "inputs"),
    )

    def check(self) -> None:
        super().check()
        if self.patience and self.increment_decay:
            raise ValueError(
                f"patience does not go with increment_decay, got {self.increment_decay}; set one "
                f"of them to 0"
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
            project=self._projects(),
            rows=s.rows or None,
            warn_at_quota=1.0,
            keep_tasks=len(self.scenario.tasks) <= _COMPARED,
        )
        if s.first_anchor == "zero":
            state = self.shield.state_dict()
            state["anchors"] = {name: torch.zeros_like(a) for name, a in state["anchors"].items()}
            self.shield.load_state_dict(state, strict=False)

    def _projects(self) -> Literal["gradients", "inputs"]:
        wanted: Literal["auto", "gradients", "inputs"] = self.settings.project
        if wanted == "auto":
            plain = not self.settings.decay
            return "inputs" if plain and isinstance(self.model, AlexNet) else "gradients"
        return wanted

    def guarded(self, optimizer: torch.optim.Optimizer, finish: Callable[[], None]) -> None:
        self.shield.guard(optimizer, between=finish)

    def learn(self, number: int) -> list[dict[str, Any]]:
        with warnings.catch_warnings():  # quotas are in the results; little room is the point here
            warnings.simplefilter("ignore", ShieldFullWarning)
            return super().learn(number)

    def drifts(self) -> bool:
        return super().drifts() or bool(self.settings.increment_decay > 0)

    def end_task(self, number: int) -> None:
        self.shield.remember(self._batches(self.scenario.tasks[number].train, number))
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

    def _record_quotas(self) -> None:
        """Quotas, spectra and the tasks' similarity at the input, for the results."""
        for number, (name, conceptor) in enumerate(self.shield.conceptors().items()):
            label = name
            if isinstance(self.model, StackedMLP):
                label = f"hidden {number}" if number else "input"
            seeds, quotas = len(self.extras), conceptor.quota  # [groups], as many for every seed
            kinds = {"quota": quotas.reshape(seeds, -1).mean(1).tolist()}
            if len(quotas) == seeds and conceptor.dim <= _DRAWN:  # norms have groups of two
                kinds["spectra"] = (conceptor.singular_values * 1e5).round().div(1e5).tolist()
            for kind, by_seed in kinds.items():
                for extra, shown in zip(self.extras, by_seed):
                    extra.setdefault(kind, {}).setdefault(label, []).append(shown)
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
