"""The whole table by one command: settings chosen, timed, tested, and the page written.

What is done is kept at once, so that a run may be stopped at any time and started again.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
from pathlib import Path

from conceptors.bench.pretrained import choice, page, timing
from conceptors.bench.pretrained.cells import COLUMNS, Cell
from conceptors.bench.pretrained.methods import COMMON, Settings
from conceptors.bench.pretrained.registry import METHODS, missing
from conceptors.bench.pretrained.stream import Size, stored_in
from conceptors.bench.pretrained.work import Results, load, save, work
from conceptors.experiments.machine import environment, find_device

STEPS = ("tune", "time", "test", "page")
_TUNING = 0.5  # share of the time, at most


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    device = find_device(options.device)
    where, size = str(device), Size(options.domains, options.sentences)
    jobs = options.jobs or (14 if device.type == "cuda" else 1)
    steps = options.step or list(STEPS)
    begun, budget = time.monotonic(), 60 * (options.minutes or math.inf)
    path = options.out / "results.json"
    results, failed = load(path, size), 0
    methods = []
    for name in options.method or list(METHODS):
        if why := missing(name):
            _say(f"{name} is skipped: {why}")
        else:
            methods.append(name)
    common: Settings = dict(options.set)

    def keep() -> None:
        save(path, results)

    if set(steps) - {"page"}:
        results["environment"] = {**environment(device), **_versions()}
    if "tune" in steps:
        tested = {one["method"] for one in results["runs"]}
        new = [name for name in methods if name not in tested]  # test sentences are used once
        cells = choice.trials(new, common, size, where, options.trial_seeds)
        until = begun + _TUNING * budget
        failed += work(cells, results["trials"], keep, jobs=jobs, until=until, say=_say)
        results["chosen"] |= choice.choose(results["trials"], cells)
        keep()
    if "time" in steps:
        own = {name: _settings(results, name, common)["known"] for name in methods}
        results["timing"] |= timing.measure(own, size, where, _say)
        timing.add_ratios(results["timing"])
        keep()
    if "test" in steps:
        cells = _tests(methods, results, common, size, where, options.seeds)
        until = begun + budget
        failed += work(cells, results["runs"], keep, jobs=jobs, until=until, say=_say)
    if "page" in steps and options.page is not None:
        page.write(results, options.page)
    _say(page.tables(results))
    if failed:
        raise SystemExit(f"{failed} runs failed: see above; start again to try them again")


def _tests(
    methods: list[str], results: Results, common: Settings, size: Size, device: str, seeds: int
) -> list[Cell]:
    """One seed of all methods, then the next: if time runs out, all have as many."""
    for name in methods:
        results["chosen"][name] = _settings(results, name, common)
    return [
        Cell(name, seed, results["chosen"][name][column], "test", True, size, device)
        for seed in range(seeds)
        for name in methods
        for column in COLUMNS
    ]


def _settings(results: Results, name: str, common: Settings) -> dict[str, Settings]:
    """What was chosen; the defaults if nothing was."""
    default = METHODS[name].with_settings(common)
    found: dict[str, Settings] = results["chosen"].get(name, {})
    return {column: found.get(column, default) for column in COLUMNS}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("transformers", "peft"):
        try:  # its own word: where it is a folder on the path, it has no metadata
            found[name] = importlib.import_module(name).__version__
        except ImportError:
            found[name] = None
    found["encoder"] = stored_in()
    return found


def _setting(text: str) -> tuple[str, float]:
    key, _, value = text.partition("=")
    known = {
        name
        for row in METHODS.values()
        for name, value in (COMMON | row.with_settings({})).items()
        if not isinstance(value, str)
    }
    if key not in known:
        raise argparse.ArgumentTypeError(
            f"no setting {key!r}; there are {', '.join(sorted(known))}"
        )
    try:
        number = float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{key} needs a number, got {value!r}") from None
    return key, int(number) if number.is_integer() else number


def _say(line: str) -> None:
    print(line, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--step", action="append", choices=STEPS, help="only these (all, in this order)")
    add("--method", action="append", choices=METHODS, help="only these")
    add("--device", default="auto")
    add("--seeds", type=int, default=5)
    add("--trial-seeds", type=int, default=1, help="of each setting that is tried")
    add("--jobs", type=int, default=0, help="side by side; 14 on a GPU, else 1")
    add("--minutes", type=float, help="begin no run after so many; half of them for tuning")
    add("--domains", type=int, default=Size().domains)
    add("--sentences", type=int, default=Size().sentences, help="of each intent, at most")
    add(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="KEY=NUMBER",
        help="for all methods that have it: epochs, batch, head_rate, lift, ...",
    )
    add("--out", type=Path, default=Path("results/pretrained"))
    add("--page", type=Path, help="the page whose tables are written")
    return parser
