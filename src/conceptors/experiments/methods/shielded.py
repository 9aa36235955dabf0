"""Training under a shield: with nothing chosen, and what conceptor-aided back-propagation needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from conceptors.algebra.conceptor import similarity
from conceptors.algebra.targets import CLAIMED, Auto
from conceptors.experiments.methods.base import Learner
from conceptors.experiments.methods.relatives.layers import matrix_layers
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.networks import StackedMLP
from conceptors.experiments.scenarios import Split
from conceptors.shield import Shield, ShieldFullWarning

_COMPARED = 10  # at most so many tasks are compared with each other
_DRAWN = 1024  # inputs up to which layers of an MLP have spectra, of one seed: they take long


@dataclass(frozen=True)
class ShieldedSettings(Settings):
    samples: int = setting(0, "images a task for the conceptors, 0 for all")
    rows: int = setting(0, "rows of a layer of a thousand images for them, 0 for all")


@dataclass(frozen=True)
class AutoSettings(ShieldedSettings):
    share: float = setting(CLAIMED, "of a task's energy that every layer claims, see Auto")
    pull: float = setting(
        Auto.pull, "how strongly layers are drawn back to what they did, see Auto"
    )
    room: float = setting(
        Auto.room, "of every layer's inputs that is left to steps, see Auto", before=0.0
    )

    def check(self) -> None:
        super().check()
        Auto(self.share, self.pull, self.room)


class Shielded(Learner):
    """`Shield(model)`: apertures and all else are chosen from the data.

    With one head per task the head is not protected: other tasks' outputs get no gradient there.
    """

    name: ClassVar[str] = "shield"
    about: ClassVar[str] = "Shield(model) with nothing chosen: apertures from the tasks' own data"
    settings_type: ClassVar[type[Settings]] = AutoSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shield = Shield(
            self.model,
            **self.protection(),
            rows=self.settings.rows or None,
            exclude=self.unprotected(),
            warn_at_quota=1.0,
            keep_tasks=len(self.scenario.tasks) <= _COMPARED,
        )

    def protection(self) -> dict[str, Any]:
        """What the shield is told."""
        s = self.settings
        return {"aperture": Auto(s.share, s.pull, s.room)}

    def unprotected(self) -> list[str]:
        """Layers that the shield leaves alone."""
        return [matrix_layers(self.model)[-1].name] if self.scenario.heads else []

    def guarded(self, optimizer: torch.optim.Optimizer, finish: Callable[[], None]) -> None:
        self.shield.guard(optimizer, between=finish)

    def learn(self, number: int) -> list[dict[str, Any]]:
        with warnings.catch_warnings():  # quotas are in the results; little room is the point here
            warnings.simplefilter("ignore", ShieldFullWarning)
            return super().learn(number)

    def end_task(self, number: int) -> None:
        self.remember(self.batches(self.scenario.tasks[number].train, number))
        self._record_quotas()

    def remember(self, batches: Iterable[Any]) -> None:
        self.shield.remember(batches)

    def stored_numbers(self) -> list[int]:
        """The conceptors of all tasks together; what else the shield keeps are weights."""
        parts = [p for own in self.shield.state_dict()["claimed"].values() for p in own.values()]
        held = sum(part.numel() for part in parts if isinstance(part, Tensor))
        return [held // len(self.seeds)] * len(self.seeds)

    def batches(self, split: Split, number: int) -> Iterator[tuple[Tensor, Tensor]]:
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

    def label(self, name: str, number: int) -> str:
        """What the layer of that number is called in results."""
        if not isinstance(self.model, StackedMLP):
            return name
        return f"hidden {number}" if number else "input"

    def _record_quotas(self) -> None:
        """Quotas, spectra and the tasks' similarity at the input, for the results."""
        for number, (name, conceptor) in enumerate(self.shield.conceptors().items()):
            label = self.label(name, number)
            seeds, quotas = len(self.extras), conceptor.quota  # [groups], as many for every seed
            kinds = {"quota": quotas.reshape(seeds, -1).mean(1).tolist()}
            if isinstance(self.model, StackedMLP) and conceptor.dim <= _DRAWN:
                drawn = conceptor[:1].singular_values
                kinds["spectra"] = (drawn * 1e5).round().div(1e5).tolist()
            for kind, by_seed in kinds.items():
                for extra, shown in zip(self.extras, by_seed):
                    extra.setdefault(kind, {}).setdefault(label, []).append(shown)
        shares = self.shield.tasks()
        if not shares:
            return
        first = next(iter(shares[-1]))
        groups = shares[-1][first].batch_shape
        if len(shares) == len(self.scenario.tasks) <= _COMPARED and groups == (len(self.seeds),):
            found = torch.stack(
                [torch.stack([similarity(a[first], b[first]) for b in shares]) for a in shares], -1
            )  # [tasks, seeds, tasks]
            for i, extra in enumerate(self.extras):
                extra["similarity"] = [[round(v, 4) for v in row] for row in found[:, i].tolist()]
