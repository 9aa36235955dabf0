"""`conceptors all`: every method on every benchmark, or as its paper ran it, and the page."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from conceptors.cli.engine import chosen_engine
from conceptors.cli.progress import ProgressLine
from conceptors.experiments.compare import (
    Cell,
    How,
    Plan,
    experiment,
    forget_device_memory,
    plan,
    run_all,
    standing,
)
from conceptors.experiments.events import Event
from conceptors.experiments.experiment import ExperimentError
from conceptors.experiments.protocols import plan_published
from conceptors.experiments.step_times import PLAIN, STEPS, time_steps

RESULTS, PUBLISHED = Path("results/comparison"), Path("results/published")


def act_on_all(options: argparse.Namespace) -> int:
    """Do what was asked for; 0 if all went well, 1 if a cell failed."""
    usual = PUBLISHED if options.published else RESULTS
    folder = usual if options.out is None else Path(options.out)
    if options.page:
        return _page(folder, Path(options.page), options)
    if options.steps and (options.published or options.shared or options.engine != "local"):
        raise ExperimentError(
            "--steps times the comparison's methods, alone on this machine; leave --published, "
            "--shared and --engine out"
        )
    planned = plan_published if options.published else plan
    made = planned(options.rows, options.methods, options.seeds or (1 if options.check else None))
    how = How(
        options.device,
        options.stacked,
        options.check,
        options.retry,
        command=_command(options),
        shared=options.shared,
    )
    if options.list:
        return _list(made, how, folder)
    if options.steps:
        return _time(made, how, folder, quiet=options.quiet)
    if options.check and options.out is None:
        with tempfile.TemporaryDirectory() as passing:
            return _run(made, how, Path(passing), options)
    code = _run(made, how, folder, options)
    print(f"results: {folder}")
    if not options.check:
        where = "" if options.out is None else f" --out {shlex.quote(str(folder))}"
        which = " --published" if options.published else ""
        print(f"page:    conceptors all{which} --page{where}")
    return code


def _run(made: Plan, how: How, folder: Path, options: argparse.Namespace) -> int:
    quiet: bool = options.quiet
    engine = chosen_engine(options, folder)
    line = ProgressLine(quiet)

    def show(event: Event) -> None:
        line.show(event)

    def tell(text: str) -> None:
        nonlocal line
        line.end()
        line = ProgressLine(quiet)  # the time that is left is told for each cell
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    for note in made.notes:
        tell(note)
    failed = run_all(made.cells, folder, how, progress=show, tell=tell, engine=engine)
    line.end()
    print(f"{len(made.cells) - len(failed)} of {len(made.cells)} done")
    for cell, why in failed.items():
        print(f"failed: {cell}: {why}", file=sys.stderr)
    return 1 if failed else 0


def _list(made: Plan, how: How, folder: Path) -> int:
    named = ""
    for cell in made.cells:
        if cell.benchmark.name != named:
            named = cell.benchmark.name
            print(f"{named}: {cell.benchmark}; goal: {cell.benchmark.goal}")
        found = standing(experiment(cell, how), folder / named)
        done = cell.seeds - len(found.left) - len(found.failed)
        state = f"{done} of {cell.seeds} seeds done"
        state += f", {len(found.failed)} failed" if found.failed else ""
        settings = "own settings" if cell.has_own_settings else "settings that all share"
        print(f"  {cell.method:<18} {state:<24} {settings}")
    for note in made.notes:
        print(note)
    return 0


def _time(made: Plan, how: How, folder: Path, *, quiet: bool) -> int:
    """Times of steps, a file for each benchmark, where those of plain SGD are always there."""
    by_row: dict[str, list[Cell]] = {}
    for cell in made.cells:
        row = by_row.setdefault(cell.benchmark.name, [replace(cell, method=PLAIN)])
        row += [cell] if cell.method != PLAIN else []
    left_out: list[str] = []

    def tell(text: str) -> None:
        left_out.append(text)
        print(text, file=sys.stderr, flush=True)

    for number, (name, cells) in enumerate(by_row.items(), 1):
        if not quiet:
            print(f"[{number}/{len(by_row)}] {name}", file=sys.stderr, flush=True)
        found = time_steps(cells, how, tell)
        found.write(folder / name / STEPS)
        for method, ratio in found.ratios.items():
            print(f"{name}, {method}: {ratio:.2f} ×")
        forget_device_memory()
    print(f"times: {folder}/*/{STEPS}")
    return 1 if left_out else 0


def _page(folder: Path, page: Path, options: argparse.Namespace) -> int:
    from conceptors.report import need_charts

    need_charts()
    from conceptors.report import papers_page, standings_page

    if options.published:
        if options.rows:
            raise ExperimentError("--published --page shows all protocols; leave --rows out")
        print(papers_page.write(folder, page))
        return 0
    for file in standings_page.write(folder, page, options.rows):
        print(file)
    return 0


def _command(options: argparse.Namespace) -> str:
    """The command for the results: without the folder, which means nothing elsewhere."""
    words = ["conceptors", "all", *(["--published"] if options.published else [])]
    words += ["--check"] if options.check else ["--steps"] if options.steps else []
    words += ["--shared"] if options.shared else []
    words += ["--seeds", str(options.seeds)] if options.seeds else []
    return shlex.join([*words, "--device", options.device])
