"""Named settings: `paper` has the paper's, `best` those that were chosen on validation data.

`best.json` has one entry per benchmark, which is a scenario with a number of tasks, heads and a
network. The name of a benchmark is a preset, too.
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
    if not entries:
        close = nearest(scenario, {entry.scenario for entry in groups[name].values()})
        raise ValueError(f"preset {name!r} has no settings for scenario {scenario!r}{close}")
    asked = options or {}
    if name == "best":
        tasks, heads = asked.get("tasks"), asked.get("heads")
        entries = [e for e in entries if tasks in (None, e.tasks) and heads in (None, e.heads)]
    if not entries:
        raise ValueError(
            f"preset 'best' has no settings for {scenario} with {asked}. Settings of another "
            f"benchmark are not tuned for it. To use them, give its name{nearest('', groups)}"
        )
    wanted = str(hidden).replace(" ", "")
    return next((e for e in entries if e.common.get("hidden") == wanted), entries[0])
