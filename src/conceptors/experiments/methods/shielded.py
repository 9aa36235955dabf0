"""Training under `Shield(model)` with default settings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from conceptors import Shield, similarity
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.networks import MLP
from conceptors.shield import ShieldFullWarning

_COMPARED = 10  # tasks that are compared with each other at most
_SPECTRA = 1024  # inputs of layers whose spectra are recorded at most


@dataclass(frozen=True)
class ShieldedSettings(Settings):
    samples: int = setting(0, "images per task for the conceptors, 0 for all")


class Shielded(Learner):
    """`Shield(model)`: it chooses apertures and everything else from the data.

    With one head per task the head is not protected: other tasks' outputs get no gradient there.
    """

    name = "shield"
    about = "Shield(model), default settings: apertures from the tasks' own data"
    settings_type: ClassVar[type[Settings]] = ShieldedSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        kinds = (nn.Linear, nn.Conv2d)
        self.layers = [n for n, m in self.model.named_modules() if isinstance(m, kinds)]
        self.shield = self.make_shield(
            exclude=self.unprotected(), keep_tasks=len(self.scenario.tasks) <= _COMPARED
        )

    def make_shield(self, **options: Any) -> Shield:
        return Shield(self.model, **options)

    def unprotected(self) -> list[str]:
        """Layers that the shield ignores."""
        return self.layers[-1:] if self.scenario.heads else []

    def guarded(self, optimizer: torch.optim.Optimizer, finish: Callable[[], None]) -> None:
        self.shield.guard(optimizer, between=finish)

    def learn(self, number: int) -> dict[str, Any]:
        with warnings.catch_warnings():  # full layers are expected here; the results record quotas
            warnings.simplefilter("ignore", ShieldFullWarning)
            return super().learn(number)

    def end_task(self, number: int) -> None:
        self.shield.remember(self.batches(number))
        self._record()

    def batches(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Random training samples of a task."""
        split = self.scenario.tasks[number].train
        generator = torch.Generator().manual_seed(224_737 * (number + 1) + self.scenario.seed)
        places = torch.randperm(len(split), generator=generator)[: self.settings.samples or None]
        return map(split.take, places.to(self.device).split(1000))

    def stored_numbers(self) -> int:
        """The conceptors of all tasks together; anchors are weights."""
        conceptors = self.shield.conceptors().values()
        return sum(C.batch_shape.numel() * C.dim**2 for C in conceptors)

    def _record(self) -> None:
        """Add quotas, spectra and the tasks' similarity at the input to the results."""
        is_mlp = isinstance(self.model, MLP)
        quota, spectra = (self.extras.setdefault(kind, {}) for kind in ("quota", "spectra"))
        for number, (name, conceptor) in enumerate(self.shield.conceptors().items()):
            label = (f"hidden {number}" if number else "input") if is_mlp else name
            quota.setdefault(label, []).append(float(conceptor.quota.mean()))
            if is_mlp and conceptor.dim <= _SPECTRA:
                values = [round(value, 5) for value in conceptor.singular_values.flatten().tolist()]
                spectra.setdefault(label, []).append(values)
        tasks = self.shield.tasks()
        if len(tasks) == len(self.scenario.tasks) <= _COMPARED and tasks[0]:
            inputs = [next(iter(task.values())) for task in tasks]
            self.extras["similarity"] = [
                [round(float(similarity(a, b).mean()), 4) for b in inputs] for a in inputs
            ]
