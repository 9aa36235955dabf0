"""Conceptor-aided back-propagation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from conceptors.experiments.methods.relatives.layers import matrix_layers
from conceptors.experiments.methods.settings import Settings, setting
from conceptors.experiments.methods.shielded import Shielded, ShieldedSettings
from conceptors.experiments.networks import AlexNet


@dataclass(frozen=True)
class CabSettings(ShieldedSettings):
    aperture: float = setting(9.0, "of the conceptors of all layers: larger protects more")
    input_aperture: float = setting(0.0, "aperture of the first layer, 0 for the same")
    hard: bool = setting(False, "hard conceptors: a direction is protected wholly or not at all")
    increment_decay: float = setting(0.0, "λ of Algorithm 2: pull towards the last task's weights")
    first_anchor: str = setting(
        "initial", "what that pull is towards in the first task", choices=("initial", "zero")
    )
    project: str = setting(
        "auto",
        "gradients, or the inputs of linear layers; auto: whichever is less work",
        choices=("auto", "gradients", "inputs"),
    )

    def check(self) -> None:
        super().check()
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
    stackable: ClassVar[bool] = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.settings.first_anchor == "zero":
            state = self.shield.state_dict()
            state["anchors"] = {name: torch.zeros_like(a) for name, a in state["anchors"].items()}
            self.shield.load_state_dict(state, strict=False)

    def protection(self) -> dict[str, Any]:
        s = self.settings
        first = matrix_layers(self.model)[0].name
        return {
            "aperture": {first: s.input_aperture or s.aperture, "*": s.aperture},
            "hard": s.hard,
            "increment_decay": s.increment_decay,
            "project": self._projects(),
        }

    def _projects(self) -> Literal["gradients", "inputs"]:
        s = self.settings
        wanted: Literal["auto", "gradients", "inputs"] = s.project
        if wanted != "auto":
            return wanted
        small = isinstance(self.model, AlexNet) or s.batch < max(s.sizes, default=0)
        return "inputs" if small and s.gradient == "mean" and not s.decay else "gradients"

    def drifts(self) -> bool:
        return super().drifts() or bool(self.settings.increment_decay > 0)
