"""Presets, which are named settings, and what is to be run, checked before anything runs.

`paper.json` has the paper's settings by scenario, `best.json` those that were chosen on validation
data. The latter has one entry per benchmark: a scenario with a number of tasks, heads and a
network. The name of a benchmark is a preset, too.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any

from conceptors._internal.checks import nearest
from conceptors.experiments.methods import METHODS
from conceptors.experiments.methods.settings import Settings, parse_settings
from conceptors.experiments.scenarios.data.read import Data
from conceptors.experiments.scenarios.images import SCENARIOS


@dataclass(frozen=True)
class Preset:
    """Settings of a scenario's methods, how they deviate from the paper, and published values."""

    scenario: str = ""
    common: dict[str, Any] = field(default_factory=dict)  # of all methods that train a network
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    deviations: list[str] = field(default_factory=list)
    reference: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: int | None = None
    heads: bool = False


@cache
def presets(name: str) -> dict[str, Preset]:
    """Entries of `paper.json` by scenario, or of `best.json` by benchmark."""
    text = files(__package__).joinpath(f"{name}.json").read_text("utf-8")
    return {key: Preset(**entry) for key, entry in json.loads(text).items()}


def preset(
    name: str | None, scenario: str, options: dict[str, Any] | None = None, hidden: Any = None
) -> Preset:
    """A preset of a scenario; without a name, defaults.

    "best" is the first benchmark with the tasks and heads that the options ask for; if there are
    several, the one with these hidden layers. ValueError: there is no such preset.
    """
    if name is None:
        return Preset()
    groups = {"paper": presets("paper"), "best": presets("best")}
    groups |= {key: {key: entry} for key, entry in presets("best").items()}
    if name not in groups:
        raise ValueError(f"unknown preset {name!r}{nearest(name, groups)}")
    entries = [entry for entry in groups[name].values() if entry.scenario == scenario]
    if name == "best":
        tasks, heads = ((options or {}).get(option) for option in ("tasks", "heads"))
        entries = [e for e in entries if tasks in (None, e.tasks) and heads in (None, e.heads)]
    if not entries:
        raise ValueError(
            f"preset {name!r} has no settings for scenario {scenario!r} with options {options}. "
            f"Settings of another benchmark are not tuned for it. To use those of a benchmark of "
            f"this scenario, give its name{nearest(scenario, groups)}"
        )
    wanted = str(hidden).replace(" ", "")
    return next((e for e in entries if e.common.get("hidden") == wanted), entries[0])


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
    data: Data | None = field(default=None, compare=False, repr=False)  # not the scenario's own

    def chosen(self, method: str) -> Preset:
        """The preset for this scenario and for the network that a method trains."""
        hidden = self._asked(method).get("hidden")
        return preset(self.preset, self.scenario, self.options, hidden)

    def config(self, method: str) -> dict[str, Any]:
        """All settings of a method, checked."""
        kind, chosen = METHODS[method].settings_type, self.chosen(method)
        shared = chosen.common if issubclass(kind, Settings) else {}
        shared = shared | chosen.methods.get(method, {})
        if "epochs" in self._asked(method):  # instead of a preset's steps
            shared = shared | {"steps": 0}
        shared = shared | self.settings.get("*", {})
        names = {entry.name for entry in fields(kind)}
        known = {name: value for name, value in shared.items() if name in names}
        return asdict(parse_settings(kind, known | self.settings.get(method, {})))

    def _asked(self, method: str) -> dict[str, Any]:
        return self.settings.get("*", {}) | self.settings.get(method, {})

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
        for method in self.methods:
            self.config(method)
