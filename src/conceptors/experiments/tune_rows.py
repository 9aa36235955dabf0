"""The grids of `grids.py`, each learned as one stack; every finished stack is kept.

A point is one combination of settings. Points of a grid are members of one stacked network, so
that a GPU has them all for about the time of one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from conceptors._internal.files import write_atomically
from conceptors._internal.suggest import nearest
from conceptors.experiments.benchmarks import BENCHMARKS
from conceptors.experiments.compare import plan
from conceptors.experiments.events import Progress
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.grid import Book, check_asked
from conceptors.experiments.grids import GRIDS, QUICK, Grid
from conceptors.experiments.ledger import locked, open_ledger
from conceptors.experiments.methods import METHODS, Settings
from conceptors.experiments.methods.settings import may_differ
from conceptors.experiments.scenarios.data import Arrays
from conceptors.experiments.trials import Trial, scores_of_points
from conceptors.experiments.tuned import SHARED, TUNED, Chosen

FIRST_SEED = 100  # seeds that are reported are others


@dataclass(frozen=True)
class Search:
    """One method's grid on one benchmark."""

    row: str
    method: str
    grid: Grid

    def __str__(self) -> str:
        return f"{self.row}, {self.method}"


@dataclass(frozen=True)
class How:
    """How all of them are run."""

    device: str = "auto"
    seeds: int = 1
    settings: dict[str, Any] = field(default_factory=dict)  # over those of `tuned.py`
    arrays: Arrays | None = field(default=None, compare=False, repr=False)  # instead of all data


def searches(
    rows: Sequence[str] = (), methods: Sequence[str] = (), grid: Grid | None = None
) -> list[Search]:
    """All grids of the named benchmarks and methods, by default of those that take minutes.

    Args:
        grid: what to try instead, with each of the named methods.

    Raises:
        ExperimentError: unknown name, or a grid of one's own without names.
    """
    if grid:
        return _own_searches(rows, methods, grid)
    known = {method for by_method in GRIDS.values() for method in by_method}
    for row in rows:
        if row not in GRIDS:
            raise ExperimentError(f"there is no grid for {row!r}{nearest(row, GRIDS)}")
    for method in methods:
        if method not in known:
            raise ExperimentError(f"there is no grid for {method!r}{nearest(method, known)}")
    return [
        Search(row, method, grid)
        for row in dict.fromkeys(rows or QUICK)
        for method, grid in GRIDS[row].items()
        if method in (methods or known)
    ]


def _own_searches(rows: Sequence[str], methods: Sequence[str], grid: Grid) -> list[Search]:
    if not (rows and methods):
        raise ExperimentError("a grid of your own needs --rows and --methods, which it is for")
    for name, values in grid.items():
        if not values:
            raise ExperimentError(f"the grid has nothing to try for {name}; write {name} 1 2")
    for method in methods:
        if method not in METHODS or not issubclass(METHODS[method].settings_type, Settings):
            able = [name for name in METHODS if issubclass(METHODS[name].settings_type, Settings)]
            raise ExperimentError(f"no method {method!r} trains a network{nearest(method, able)}")
    plan(rows, methods)  # checks names of benchmarks
    return [Search(row, method, grid) for row in dict.fromkeys(rows) for method in methods]


def experiment(search: Search, how: How) -> Experiment:
    """What its points have in common.

    Raises:
        ExperimentError: a setting is given that the grid tries.
    """
    if both := sorted(set(search.grid) & set(how.settings)):
        raise ExperimentError(f"{both[0]} is tried by the grid of {search}; leave it out")
    benchmark = BENCHMARKS[search.row]
    return Experiment(
        benchmark.scenario,
        [search.method],
        list(range(FIRST_SEED, FIRST_SEED + how.seeds)),
        preset=search.row,
        options=benchmark.options,
        settings={search.method: {**_before(search), **how.settings}},
        device=how.device,
        arrays=how.arrays,
    )


def _before(search: Search) -> dict[str, Any]:
    """What undoes all that was chosen before: it has no part in a search."""
    usual = {**asdict(METHODS[search.method].settings_type()), **SHARED[search.row]}
    own = {name: usual[name] for name in TUNED[search.row].get(search.method, {})}
    return own | {name: values[0] for name, values in search.grid.items()}


def points(search: Search, common: Experiment) -> list[dict[str, Any]]:
    """All combinations, as values of the settings' types; each of them checked."""
    made = []
    for values in itertools.product(*search.grid.values()):
        asked = dict(zip(search.grid, values))
        config = Trial(common, asked, common.seeds).tried.config(search.method)
        made.append({name: config[name] for name in asked})
    return made


def run_search(search: Search, folder: Path, how: How, progress: Progress) -> dict[str, Any]:
    """The best line of a grid, after what was not tried yet has been.

    Raises:
        ExperimentError: impossible request, or the folder holds a search with other settings.
    """
    common = experiment(search, how)
    common = replace(common, device=str(common.check()))
    own = folder / search.row / search.method
    with open_ledger(own):
        check_asked(common, own / "grid.json")
        book = Book(own / "trials.jsonl", common.seeds)
        wanted = points(search, common)
        left = [point for point in wanted if book.find(point) is None]
        for stack in stacks(search.method, left):
            for point, scores in zip(stack, scores_of_points(common, stack, progress)):
                book.add(point, scores)
        lines = [line for point in wanted if (line := book.find(point)) is not None]
    return max(lines, key=lambda line: float(line["validation"]))


def stacks(method: str, left: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Points that can be members of one stack: they differ only in what members may."""
    able = may_differ(METHODS[method].settings_type)

    def alike(point: dict[str, Any]) -> str:
        return repr([(name, value) for name, value in point.items() if name not in able])

    for _, together in itertools.groupby(sorted(left, key=alike), alike):
        yield list(together)


def run_searches(
    wanted: Sequence[Search],
    folder: Path,
    how: How,
    *,
    progress: Progress,
    tell: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """The best settings of every search, by benchmark and method; also in `best.json`."""
    path = folder / "best.json"
    best: dict[str, dict[str, Any]] = {}
    for number, search in enumerate(wanted, 1):
        line = run_search(search, folder, how, progress)
        kept = {"settings": line["settings"], "validation": round(line["validation"], 3)}
        with locked(folder, wait=True):  # others may run other searches beside this one
            best = json.loads(path.read_bytes()) if path.exists() else {}
            best.setdefault(search.row, {})[search.method] = kept
            write_atomically(path, json.dumps(best, indent=1).encode())
        tell(f"[{number}/{len(wanted)}] {search}: {kept['validation']:.2f} % {kept['settings']}")
    return best


def chosen(best: dict[str, dict[str, Any]], wanted: Sequence[Search]) -> Chosen:
    """The settings that these searches found best, as `tuned.adopt` takes them.

    >>> best = {"a-row": {"gpm": {"settings": {"rate": 0.1}, "validation": 95.0}}}
    >>> chosen(best, [Search("a-row", "gpm", {})])
    {'a-row': {'gpm': {'rate': 0.1}}}
    """
    found: Chosen = {}
    for search in wanted:
        found.setdefault(search.row, {})[search.method] = best[search.row][search.method][
            "settings"
        ]
    return found
