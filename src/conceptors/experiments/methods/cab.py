"""Conceptor-aided back-propagation (He & Jaeger 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conceptors import Shield
from conceptors.experiments.methods.settings import setting
from conceptors.experiments.methods.shielded import Shielded, ShieldedSettings


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
        s = self.settings
        first = {self.layers[0]: s.input_aperture or s.aperture}
        norms = {"norms": s.norm_aperture} if s.norm_aperture else {}
        apertures = {**norms, **first, "*": s.aperture}
        initial = [p.detach().clone() for p in self.model.parameters()]
        for parameter in self.model.parameters() if s.first_anchor == "zero" else ():
            parameter.data.zero_()  # a shield pulls towards the weights that it was created with
        options |= {"hard": s.hard, "increment_decay": s.increment_decay}
        shield = Shield(self.model, apertures, **options)
        for parameter, value in zip(self.model.parameters(), initial):
            parameter.data.copy_(value)
        return shield
