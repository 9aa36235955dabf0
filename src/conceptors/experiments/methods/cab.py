"""Training under a shield: `Shield(model)`, and CAB (He & Jaeger 2017) with chosen apertures."""

import warnings
from collections.abc import Iterator
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
    replaces_head = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        kinds = (nn.Linear, nn.Conv2d)
        self.layers = [n for n, m in self.model.named_modules() if isinstance(m, kinds)]
        head = self.layers[-1:] if self.scenario.heads or self.replaces_head else []
        keep_tasks = len(self.scenario.tasks) <= _COMPARED
        self.shield = self.make_shield(exclude=head, keep_tasks=keep_tasks)

    def make_shield(self, **options: Any) -> Shield:
        return Shield(self.model, **options)

    def new_optimizer(self, rate: float) -> torch.optim.Optimizer:
        self.optimizer = self.shield.guard(super().new_optimizer(rate))
        return self.optimizer

    def gradients(self, number: int) -> None:
        self.shield.project_(self.optimizer)

    def learn(self, number: int) -> None:
        with warnings.catch_warnings():  # full layers are expected here; the results record quotas
            warnings.simplefilter("ignore", ShieldFullWarning)
            super().learn(number)

    def end_task(self, number: int) -> None:
        del self.optimizer  # the shield would prepare it for steps that never come
        self.shield.remember(self.batches(number))
        is_mlp = isinstance(self.model, MLP)
        for i, (name, conceptor) in enumerate(self.shield.conceptors().items()):
            label = (f"hidden {i}" if i else "input") if is_mlp else name
            self._record("quota", label, float(conceptor.quota.mean()))
            if is_mlp and conceptor.dim <= _SPECTRA:
                values = conceptor.singular_values.flatten().tolist()
                self._record("spectra", label, [round(value, 5) for value in values])
        tasks = self.shield.tasks()
        if len(tasks) == len(self.scenario.tasks) and tasks[0]:
            inputs = [next(iter(task.values())) for task in tasks]
            self.extras["similarity"] = [
                [round(float(similarity(a, b).mean()), 4) for b in inputs] for a in inputs
            ]

    def _record(self, kind: str, label: str, value: Any) -> None:
        self.extras.setdefault(kind, {}).setdefault(label, []).append(value)

    def batches(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Random training samples of a task."""
        split = self.scenario.tasks[number].train
        places = split.drawn(self.settings.samples, 224_737 * (number + 1) + self.scenario.seed)
        return map(split.take, places.split(1000))


@dataclass(frozen=True)
class CabSettings(ShieldedSettings):
    aperture: float = setting(9.0, "aperture of all conceptors: larger protects more")
    input_aperture: float = setting(0.0, "aperture of the first layer, 0 for the same")
    norm_aperture: float = setting(0.0, "aperture of normalisation layers, 0 for the same")
    hard: bool = setting(False, "hard conceptors: a direction is protected wholly or not at all")
    increment_decay: float = setting(0.0, "λ of Algorithm 2: pull towards the last task's weights")
    first_anchor: str = setting(
        "initial", "weights that the first task is pulled towards", ("initial", "zero")
    )


class Cab(Shielded):
    """Each layer's gradient is projected onto the space that earlier tasks left free."""

    name = "cab"
    about = "conceptor-aided back-propagation (He & Jaeger 2017)"
    settings_type = CabSettings

    def make_shield(self, **options: Any) -> Shield:
        s, parameters = self.settings, list(self.model.parameters())
        norms = {"norms": s.norm_aperture} if s.norm_aperture else {}
        apertures = {**norms, self.layers[0]: s.input_aperture or s.aperture, "*": s.aperture}
        options |= {"hard": s.hard, "increment_decay": s.increment_decay}
        initial = [p.detach().clone() for p in parameters]
        for parameter in parameters if s.first_anchor == "zero" else ():
            parameter.data.zero_()  # a shield pulls towards the weights that it was created with
        shield = Shield(self.model, apertures, **options)
        for parameter, value in zip(parameters, initial):
            parameter.data.copy_(value)
        return shield
