"""Named settings: `paper` holds the paper's, `best` those that validation data chose here.

They are data: `paper.json` has one entry per scenario, `best.json` one per benchmark, which is a
scenario with a number of tasks, heads and a network. A benchmark's name is a preset, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from conceptors._internal.checks import nearest


@dataclass(frozen=True)
class Preset:
    """Settings of a scenario's methods, how they deviate from the paper, and published values."""

    common: dict[str, Any] = field(default_factory=dict)  # of all methods that train a network
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    deviations: list[str] = field(default_factory=list)
    reference: dict[str, dict[str, Any]] = field(default_factory=dict)
    scenario: str = ""
    tasks: int | None = None
    heads: bool | None = None

    @property
    def key(self) -> list[str]:
        """What one benchmark of a scenario differs in from the others."""
        return [str(self.tasks), str(self.heads), str(self.common.get("hidden"))]


@cache
def presets(name: str) -> dict[str, Preset]:
    """Entries of `paper.json` by scenario, or of `best.json` by benchmark."""
    text = files(__package__).joinpath(f"{name}.json").read_text("utf-8")
    return {key: Preset(**entry) for key, entry in json.loads(text).items()}


def presets_of(scenario: str) -> list[str]:
    """Names of presets for a scenario.

    >>> presets_of("permuted-mnist"), presets_of("disjoint-fashion"), presets_of("clinc150")
    (['paper', 'best'], ['best'], [])
    """
    tuned = {entry.scenario for entry in presets("best").values()}
    known = {"paper": set(presets("paper")), "best": tuned}
    return [name for name, scenarios in known.items() if scenario in scenarios]


def preset(
    name: str | None, scenario: str, options: dict[str, Any] | None = None, hidden: Any = None
) -> Preset:
    """A preset of a scenario; without a name, defaults.

    "best" is the benchmark that comes closest to the scenario's options and the hidden layers.

    Raises:
        ValueError: there is no such preset, or not for this scenario.
    """
    if name is None:
        return Preset()
    paper, best = presets("paper"), presets("best")
    if name not in ("paper", "best", *best):
        raise ValueError(f"unknown preset {name!r}{nearest(name, ['paper', 'best', *best])}")
    known = paper if name == "paper" else {entry.scenario: entry for entry in best.values()}
    if name in best:
        known = {best[name].scenario: best[name]}
    if scenario not in known:
        raise ValueError(
            f"preset {name!r} has no settings for scenario {scenario!r}{nearest(scenario, known)}"
        )
    return _closest(scenario, options or {}, hidden) if name == "best" else known[scenario]


def _closest(scenario: str, options: dict[str, Any], hidden: Any) -> Preset:
    """The benchmark with these tasks, heads and hidden layers, as far as there is one."""
    found = [entry for entry in presets("best").values() if entry.scenario == scenario]
    wanted = [options.get("tasks"), options.get("heads") is not False, hidden]
    for k, value in enumerate(wanted):
        key = found[0].key[k] if value is None else str(value).replace(" ", "")
        found = [entry for entry in found if entry.key[k] in (key, "None")] or found
    return found[0]
