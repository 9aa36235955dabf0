"""What is to be run, checked before anything is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from conceptors._internal.suggest import nearest
from conceptors.experiments.machine import find_device
from conceptors.experiments.methods import METHODS, Settings, parse_settings
from conceptors.experiments.presets import Preset, current_name, preset
from conceptors.experiments.scenarios import SCENARIOS, Scenario, build
from conceptors.experiments.scenarios.data import Arrays
from conceptors.experiments.scenarios.data.encoded import Encoded


class ExperimentError(ValueError):
    """Something about the request that must be changed; the message says what."""


@dataclass(frozen=True)
class Experiment:
    """Methods and seeds on a scenario."""

    scenario: str
    methods: list[str]
    seeds: list[int]
    preset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the scenario
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # method -> settings
    device: str = "cpu"
    stacked: int = 0  # seeds learned at once; 0: all on a GPU, one on a CPU
    command: str = ""
    replay: bool = True  # on a GPU, steps are recorded once and replayed
    shared: bool = False  # other work runs on the machine: times tell nothing
    arrays: Arrays | Encoded | None = field(
        default=None, compare=False, repr=False
    )  # instead of its data

    def chosen(self, method: str) -> Preset:
        """What the preset holds for this scenario, with the network that a method is to train."""
        asked = self.settings.get("*", {}) | self.settings.get(method, {})
        return preset(self.preset, self.scenario, self.options, asked.get("hidden"))

    def config(self, method: str) -> dict[str, Any]:
        """All settings of a method, checked."""
        if method not in METHODS:
            raise ExperimentError(f"unknown method {method!r}{nearest(method, METHODS)}")
        kind = METHODS[method].settings_type
        chosen = self.chosen(method)
        given = {**chosen.common} if issubclass(kind, Settings) else {}
        given |= chosen.methods.get(method, {})
        given |= self.settings.get("*", {}) | self.settings.get(method, {})
        known = {name: value for name, value in given.items() if name in kind.__dataclass_fields__}
        if unknown := set(self.settings.get(method, {})) - set(known):
            name = sorted(unknown)[0]
            raise ExperimentError(
                f"method {method!r} has no setting {name!r}"
                f"{nearest(name, kind.__dataclass_fields__)}"
            )
        return asdict(parse_settings(kind, known))

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to belong together."""
        return {
            "scenario": self.scenario,
            "preset": current_name(self.preset),
            "options": self.options,
            "configs": {method: self.config(method) for method in self.methods},
        }

    def check(self) -> torch.device:
        """The device; ExperimentError for an impossible request."""
        self.check_request()
        try:
            return find_device(self.device)
        except ValueError as error:
            raise ExperimentError(str(error)) from error

    def check_request(self) -> None:
        """ExperimentError for an impossible request, whatever the machine."""
        if self.scenario not in SCENARIOS:
            raise ExperimentError(
                f"unknown scenario {self.scenario!r}{nearest(self.scenario, SCENARIOS)}"
            )
        if not self.methods:
            raise ExperimentError(f"no method given{nearest('', METHODS)}")
        if self.stacked < 0:
            raise ExperimentError(f"stacked must be at least 0, got {self.stacked}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ExperimentError(f"seeds must be different numbers, got {self.seeds}")
        try:
            for method in self.methods:
                self.config(method)
            self._check_names()
        except ValueError as error:
            raise ExperimentError(str(error)) from error

    def _check_names(self) -> None:
        """Settings that no method here would take."""
        for method in self.settings:
            if method != "*" and method not in METHODS:
                raise ExperimentError(
                    f"settings for an unknown method {method!r}{nearest(method, METHODS)}"
                )
        kinds = [METHODS[method].settings_type for method in self.methods]
        known = {name for kind in kinds for name in kind.__dataclass_fields__}
        if unknown := sorted(set(self.settings.get("*", {})) - known):
            raise ExperimentError(
                f"no method here has a setting {unknown[0]!r}{nearest(unknown[0], known)}"
            )

    def groups(self, method: str, seeds: list[int], device: torch.device) -> list[list[int]]:
        """Seeds that learn together: they share a device and a stacked network."""
        at_once = self.stacked or (len(seeds) if device.type == "cuda" else 1)
        order = self.options.get("class_order", "fixed")
        if not (METHODS[method].stackable and SCENARIOS[self.scenario].stackable(order)):
            at_once = 1
        return [seeds[i : i + at_once] for i in range(0, len(seeds), max(1, at_once))]

    def build(self, seeds: list[int], device: torch.device) -> Scenario:
        """The scenario for some seeds, on the device."""
        return build(self.scenario, seeds, arrays=self.arrays, **self.options).to(device)
