"""Conceptor-aided back-propagation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from conceptors.algebra.targets import ByGroup, Energy
from conceptors.experiments.methods.relatives.layers import matrix_layers
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.methods.shielded import Shielded, ShieldedSettings
from conceptors.experiments.networks import AlexNet, StackedMLP


@dataclass(frozen=True)
class CabSettings(ShieldedSettings):
    aperture: float = setting(
        9.0, "of the conceptors of all layers: larger protects more", each=True
    )
    input_aperture: float = setting(0.0, "aperture of the first layer, 0 for the same", each=True)
    norm_aperture: float = setting(0.0, "aperture of norms, 0 for the same", each=True)
    energy: float = setting(
        0.0, "share of a task's energy that every layer's conceptor keeps, in place of apertures"
    )
    hard: bool = setting(False, "hard conceptors: a direction is protected wholly or not at all")
    increment_decay: float = setting(0.0, "λ of Algorithm 2: pull towards the last task's weights")
    first_anchor: str = setting(
        "initial", "what that pull is towards in the first task", choices=("initial", "zero")
    )
    reuse: bool = setting(False, "longer steps on tasks that are known in part: Shield.strides")
    claim_once: bool = setting(
        False, "what a known task shares with earlier ones is not claimed again"
    )
    project: str = setting(
        "auto",
        "gradients, or the inputs of linear layers; auto: whichever is less work",
        choices=("auto", "gradients", "inputs"),
    )

    def check(self) -> None:
        super().check()
        if not 0 <= self.energy <= 1:
            raise ValueError(f"energy must be a share from 0 to 1, got {self.energy}")
        if self.patience and self.increment_decay:
            raise ValueError(
                f"patience does not go with increment_decay, got {self.increment_decay}; set one "
                f"of them to 0"
            )


class Cab(Shielded):
    """Every layer's gradient is projected onto the space that earlier tasks left free."""

    name: ClassVar[str] = "cab"
    about: ClassVar[str] = "conceptor-aided back-propagation (He & Jaeger 2017)"
    settings_type: ClassVar[type[Settings]] = CabSettings

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.settings.first_anchor == "zero":
            state = self.shield.state_dict()
            state["anchors"] = {name: torch.zeros_like(a) for name, a in state["anchors"].items()}
            self.shield.load_state_dict(state, strict=False)

    def protection(self) -> dict[str, Any]:
        s = self.settings
        first = matrix_layers(self.model)[0].name
        apertures = {first: self._apertures("input_aperture"), "*": self._apertures("aperture")}
        if isinstance(self.model, AlexNet):
            apertures = {"norms": self._apertures("norm_aperture"), **apertures}
        return {
            "aperture": Energy(s.energy) if s.energy else apertures,
            "hard": s.hard,
            "increment_decay": s.increment_decay,
            "project": self._projects(),
        }

    def _apertures(self, name: str) -> float | ByGroup:
        """As the setting of that name has them, where it is not 0."""
        own, given = self.each("aperture"), self.each(name)
        return _all(torch.where(given > 0, given, own))

    def _projects(self) -> Literal["gradients", "inputs"]:
        s = self.settings
        wanted: Literal["auto", "gradients", "inputs"] = s.project
        if wanted != "auto":
            return wanted
        small = isinstance(self.model, AlexNet) or s.batch < max(s.sizes, default=0)
        return "inputs" if small and s.gradient == "mean" and not s.decay else "gradients"

    def drifts(self) -> bool:
        return super().drifts() or self.pulled()

    def pulled(self) -> bool:
        return bool(self.settings.increment_decay > 0)

    # --- similar tasks --------------------------------------------------------------------

    def start_task(self, number: int) -> None:
        """How much of the task is known, and how long steps may be."""
        s = self.settings
        self.known = torch.zeros(len(self.seeds))
        self.strides: dict[str, Tensor] = {}
        if not number or not (s.reuse or s.claim_once):
            return
        split, classes = self.scenario.tasks[number].train, self.trained_classes(number)
        chance = 1 / (self.scenario.classes if classes is None else int(classes[0].sum()))
        right = self.accuracy(split, number, s.validation) / 100
        if chance < 1:  # of a task of one class nothing can be known
            self.known = ((right - chance) / (1 - chance)).clamp(0, 1)
        if s.reuse:
            self.strides = self.shield.strides(self.batches(split, number), self._known())
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

        super().guarded(optimizer, between if scaled else finish)

    def remember(self, batches: Iterable[Any]) -> None:
        self.shield.remember(batches, known=self._known() if self.settings.claim_once else 0.0)

    def _known(self) -> float | Tensor:
        return self.known if self._by_seed() else float(self.known.mean())

    def _factors(self, parameter: Tensor, factors: Tensor) -> Tensor:
        """One for each seed of stacked layers; else one, the most careful of a layer's groups."""
        if not self._by_seed():
            return factors.min().to(parameter)
        return factors.to(parameter).reshape(-1, *[1] * (parameter.ndim - 1))

    def _by_seed(self) -> bool:
        """Whether the groups of all layers are seeds."""
        return isinstance(self.model, StackedMLP)

    def _record_reuse(self) -> None:
        """What is known of every task from the second on, and strides, for the results."""
        for i, extra in enumerate(self.extras):
            extra.setdefault("known", []).append(round(float(self.known[i]), 4))
            for number, (name, factors) in enumerate(self.strides.items()):
                own = factors[i] if self._by_seed() else factors.min()
                held = extra.setdefault("strides", {}).setdefault(self.label(name, number), [])
                held.append(round(float(own), 3))


def _all(apertures: Tensor) -> float | ByGroup:
    """One number where all seeds have the same."""
    values = apertures.tolist()
    return values[0] if len(set(values)) == 1 else ByGroup(tuple(values))
