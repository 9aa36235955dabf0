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

from conceptors._internal.suggest import nearest


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
    tuned = {benchmark.scenario for benchmark in presets("best").values()}
    return [
        name for name, known in (("paper", presets("paper")), ("best", tuned)) if scenario in known
    ]


def preset(
    name: str | None, scenario: str, options: dict[str, Any] | None = None, hidden: Any = None
) -> Preset:
    """A preset of a scenario; without a name, defaults.

    "best" depends on the scenario's options and the hidden layers: it is the benchmark that comes
    closest.

    Raises:
        ValueError: there is no such preset, or not for this scenario.
    """
    if name is None:
        return Preset()
    benchmarks = presets("best")
    if name == "paper":
        known = presets("paper")
    elif name == "best":
        known = {
            b.scenario: _closest(b.scenario, options or {}, hidden) for b in benchmarks.values()
        }
    elif name in benchmarks:
        known = {benchmarks[name].scenario: benchmarks[name]}
    else:
        raise ValueError(f"unknown preset {name!r}{nearest(name, ['paper', 'best', *benchmarks])}")
    if scenario not in known:
        raise ValueError(
            f"preset {name!r} has no settings for scenario {scenario!r}{nearest(scenario, known)}"
        )
    return known[scenario]


def _closest(scenario: str, options: dict[str, Any], hidden: Any) -> Preset:
    """The benchmark for a scenario's tasks, heads and hidden layers, as far as there is one."""
    found = [b for b in presets("best").values() if b.scenario == scenario]
    wanted = {
        "tasks": options.get("tasks") or found[0].tasks,
        "heads": options.get("heads") is not False,
        "hidden": str(hidden or found[0].common.get("hidden")).replace(" ", ""),
    }
    found = [b for b in found if b.tasks == wanted["tasks"]] or found
    found = [b for b in found if b.heads in (None, wanted["heads"])] or found
    found = [b for b in found if str(b.common.get("hidden")) == wanted["hidden"]] or found
    return found[0]
