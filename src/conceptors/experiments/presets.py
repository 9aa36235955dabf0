"""Named settings: `paper` has the paper's, `best` those that were chosen on validation data.

`paper.json` has one entry per scenario. `best.json` has one per benchmark, which is a scenario with
a number of tasks, heads and a network. The name of a benchmark is a preset, too.
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
    best = presets("best")
    names = ["paper", "best", *best]
    if name not in names:
        raise ValueError(f"unknown preset {name!r}{nearest(name, names)}")
    candidates = {
        "paper": list(presets("paper").items()),
        "best": [(entry.scenario, entry) for entry in best.values()],
    }.get(name) or [(best[name].scenario, best[name])]
    matches = [entry for known, entry in candidates if known == scenario]
    if not matches:
        close = nearest(scenario, {known for known, _ in candidates})
        raise ValueError(f"preset {name!r} has no settings for scenario {scenario!r}{close}")
    wanted = [(options or {}).get("tasks"), (options or {}).get("heads") is not False, hidden]
    for k, value in enumerate(wanted):  # the most alike, as far as there are any
        key = _key(matches[0])[k] if value is None else str(value).replace(" ", "")
        matches = [entry for entry in matches if _key(entry)[k] in (key, "None")] or matches
    return matches[0]


def _key(entry: Preset) -> list[str]:
    """What distinguishes the benchmarks of a scenario."""
    return [str(entry.tasks), str(entry.heads), str(entry.common.get("hidden"))]
