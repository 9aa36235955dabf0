"""What is to be run. Everything is checked before anything runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from conceptors._internal.checks import nearest
from conceptors.experiments.methods import METHODS, Settings, parse_settings
from conceptors.experiments.presets import Preset, preset
from conceptors.experiments.scenarios import SCENARIOS


@dataclass(frozen=True)
class Experiment:
    """Methods and seeds on a scenario."""

    scenario: str
    methods: list[str]
    seeds: list[int]
    preset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the scenario
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)  # by method, "*" for all
    device: str = "cpu"
    command: str = ""
    arrays: Any = field(default=None, compare=False, repr=False)  # instead of the scenario's data

    def chosen(self, method: str) -> Preset:
        """The preset for this scenario and for the network that a method trains."""
        hidden = self._asked(method).get("hidden")
        return preset(self.preset, self.scenario, self.options, hidden)

    def config(self, method: str) -> dict[str, Any]:
        """All settings of a method, checked."""
        kind, chosen = METHODS[method].settings_type, self.chosen(method)
        common = chosen.common if issubclass(kind, Settings) else {}
        shared = common | chosen.methods.get(method, {}) | self.settings.get("*", {})
        names = {entry.name for entry in fields(kind)}
        known = {name: value for name, value in shared.items() if name in names}
        config = asdict(parse_settings(kind, known | self.settings.get(method, {})))
        if config.get("steps") and "epochs" in self._asked(method):
            raise ValueError(
                f"epochs has no effect on method {method!r} because steps is {config['steps']}. "
                f"Leave epochs out, or add --set steps=0."
            )
        return config

    def _asked(self, method: str) -> dict[str, Any]:
        return self.settings.get("*", {}) | self.settings.get(method, {})

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to belong together."""
        configs = {method: self.config(method) for method in self.methods}
        request = {"scenario": self.scenario, "preset": self.preset, "options": self.options}
        return {**request, "configs": configs}

    def check(self) -> None:
        """Raise a ValueError for an impossible request."""
        if self.scenario not in SCENARIOS:
            close = nearest(self.scenario, SCENARIOS)
            raise ValueError(f"unknown scenario {self.scenario!r}{close}")
        if not self.methods:
            raise ValueError(f"no method given{nearest('', METHODS)}")
        for method in sorted({*self.methods, *self.settings.keys() - {"*"}} - {*METHODS}):
            raise ValueError(f"unknown method {method!r}{nearest(method, METHODS)}")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be different numbers, got {self.seeds}")
        kinds = [METHODS[method].settings_type for method in self.methods]
        names = {entry.name for kind in kinds for entry in fields(kind)}
        for name in sorted({*self.settings.get("*", {})} - names):
            close = nearest(name, names)
            raise ValueError(f"none of these methods has a setting {name!r}{close}")
        self.identity()
