"""Settings chosen on validation sentences: the best of each method's grid, for each column."""

from __future__ import annotations

from statistics import mean

from conceptors.bench.pretrained.cells import COLUMNS, Cell, final
from conceptors.bench.pretrained.methods import Settings
from conceptors.bench.pretrained.registry import METHODS
from conceptors.bench.pretrained.stream import Size
from conceptors.bench.pretrained.work import Results

SEED = 100  # of trials; none of those that are tested


def trials(
    methods: list[str], common: Settings, size: Size, device: str, seeds: int = 1
) -> list[Cell]:
    """All grids, the first settings of every method first, in case time runs out."""
    found = []
    longest = max((len(METHODS[name].grid) for name in methods), default=0)
    for place in range(longest):
        for name in methods:
            if place < len(METHODS[name].grid):
                settings = METHODS[name].with_settings(common, METHODS[name].grid[place])
                for seed in range(SEED, SEED + seeds):
                    found.append(Cell(name, seed, settings, "val", False, size, device))
    return found


def choose(done: list[Results], cells: list[Cell]) -> dict[str, dict[str, Settings]]:
    """For each method and column the settings, of those asked for, of the highest accuracy."""
    chosen: dict[str, dict[str, Settings]] = {}
    for name in dict.fromkeys(cell.method for cell in cells):
        own = [one for one in done if one["method"] == name]
        there = [one["settings"] for one in own]
        tried: list[Settings] = []
        for cell in cells:
            if cell.method == name and cell.settings in there and cell.settings not in tried:
                tried.append(cell.settings)
        if tried:
            seeds = _common(own, tried)
            chosen[name] = {
                column: max(tried, key=lambda settings: _score(own, settings, seeds, column))
                for column in COLUMNS
            }
    return chosen


def _common(done: list[Results], tried: list[Settings]) -> set[int]:
    """Seeds that all of these settings were tried with: trials may have been stopped half-way."""
    by_settings = [{one["seed"] for one in done if one["settings"] == own} for own in tried]
    shared = set.intersection(*by_settings)
    return shared or set.union(*by_settings)


def _score(done: list[Results], settings: Settings, seeds: set[int], column: str) -> float:
    return mean(
        final(one[column]) for one in done if one["settings"] == settings and one["seed"] in seeds
    )
