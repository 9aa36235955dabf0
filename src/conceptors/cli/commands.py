"""What every command does."""

from __future__ import annotations

import argparse
import shlex
import sys
import webbrowser
from pathlib import Path
from typing import Any

from conceptors._internal.suggest import nearest
from conceptors.cli.engine import chosen_engine
from conceptors.cli.everything import act_on_all
from conceptors.cli.progress import ProgressLine
from conceptors.experiments.experiment import Experiment, ExperimentError
from conceptors.experiments.methods import METHODS, explain_settings, import_methods
from conceptors.experiments.methods.settings import INEFFECTIVE
from conceptors.experiments.presets import PRESETS, RENAMED, current_name, presets_of
from conceptors.experiments.results import Failure, Results
from conceptors.experiments.runner import UnfinishedError, run
from conceptors.experiments.scenarios import SCENARIOS
from conceptors.experiments.scenarios.data import (
    CATALOGUE,
    DataUnavailableError,
    cache_folder,
    fetch,
    where,
)
from conceptors.experiments.trials import TrialsError

_AT_ONCE = 8  # trials that a search asks for at once on other machines


def act(options: argparse.Namespace) -> int:
    """Do what was asked for; 0 if all went well, 2 for a request that must be changed."""
    try:
        for file in getattr(options, "imports", []):
            import_methods(file)
        return _ACTIONS[options.command](options)
    except BrokenPipeError:
        raise  # no fault of the request: the reader of the output is gone
    except (DataUnavailableError, ValueError, ImportError, OSError) as error:
        print(f"conceptors: {error}", file=sys.stderr)
        return 2


# --- commands ----------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    experiment = _experiment(options)
    folder = Path(options.out)
    line = ProgressLine(options.quiet)
    log = _tensorboard(options.tensorboard)
    failures: dict[str, str] = {}
    diverged: list[Failure] = []
    engine = chosen_engine(options, folder)
    try:
        results = run(
            experiment, folder, progress=line.show, log=log, engine=engine, retry=options.retry
        )
    except UnfinishedError as error:
        results, failures, diverged = error.results, error.failures, error.diverged
    line.end()
    if results.runs:
        print(table(results))
        print(f"\nresults: {folder / 'results.json'}")
        print(f"page:    conceptors report {shlex.quote(str(folder))}")
        if experiment.preset is None and (named := presets_of(experiment.scenario)):
            print(f"settings are defaults, untuned; there is --preset {' and '.join(named)}")
    if diverged:
        print(
            f"failed: {'; '.join(map(str, diverged))}; set a lower rate, with another --out if "
            f"other seeds are to be the same, or try the same again with --retry",
            file=sys.stderr,
        )
    return tell_failures(failures) or (1 if diverged else 0)


def _report(options: argparse.Namespace) -> int:
    from conceptors.report import (
        need_charts,
        read_results,
        write_figures,
        write_page,
    )

    need_charts()
    from conceptors.report.seen import pictures

    folders = [_folder(Path(path)) for path in options.folder]
    for folder in folders:
        if not (folder / "results.json").is_file():
            raise ValueError(f"no results.json in {str(folder)!r}{_other_results(folder)}")
    found = [read_results(folder / "results.json") for folder in folders]
    for folder, results in zip(folders, found):
        figures = write_figures(results, folder / "figures")
        try:
            shown = pictures(results, folder / "figures")
        except DataUnavailableError as error:
            print(f"without the projected images: {error}", file=sys.stderr)
            shown = []
        page = write_page(results, folder / "index.html", shown)
        print(f"page: {page}\n{len(figures)} figures in {folder / 'figures'}")
    return 0


def _folder(path: Path) -> Path:
    """Of results, also where the file itself is named."""
    return path.parent if path.name == "results.json" and path.is_file() else path


def _other_results(folder: Path) -> str:
    """Folders with results nearby, nearest name first."""
    files = [*folder.parent.glob("*/results.json"), *Path().glob("*/*/results.json")]
    if not files:
        return "; make one with: conceptors run SCENARIO --method METHOD --out DIR"
    return nearest(str(folder), {str(file.parent) for file in files})


def _explore(options: argparse.Namespace) -> int:
    from conceptors.report import write_explorer

    if options.shield is not None and not Path(options.shield).is_file():
        raise ValueError(
            f"there is no file {str(options.shield)!r}; shield.save(FILE) makes one, after a task "
            f"is remembered"
        )
    page = write_explorer(options.out, options.shield)
    print(f"page: {page}")
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        print("no browser was found here; open the page in one", file=sys.stderr)
    return 0


def _list(options: argparse.Namespace) -> int:
    if options.method:
        if options.method not in METHODS:
            raise ValueError(
                f"unknown method {options.method!r}{nearest(options.method, METHODS)} "
                f"(one of your own comes by --import FILE.py)"
            )
        method = METHODS[options.method]
        print(f"{options.method}: {method.about}\n\nsettings (--set {options.method}.NAME=VALUE)")
        for line in explain_settings(method.settings_type):
            print(f"  {line}")
        return 0
    print("scenarios")
    for name, kind in SCENARIOS.items():
        print(f"  {name:<18} {kind.tasks:>3} tasks  {kind.about}")
    print("\nmethods")
    for name, method in METHODS.items():
        print(f"  {name:<18} {method.about}")
    print("\npresets")
    for name, presets in PRESETS.items():
        print(f"  {name:<18} for {', '.join(presets)}")
    print("  (the name of a benchmark is a preset too; see: conceptors all --list)")
    print("\nsettings of a method: conceptors list --method NAME")
    return 0


def _data(options: argparse.Namespace) -> int:
    for name in options.name or []:
        fetch(name)
    print(f"cache: {cache_folder()}")
    for name in CATALOGUE:
        files = where(name)
        found = [path for path in files.values() if path is not None]
        state = "here" if len(found) == len(files) else f"{len(found)} of {len(files)} files here"
        folders = ", ".join(dict.fromkeys(str(path.parent) for path in found))
        print(f"  {name:<14} {state}{': ' + folders if folders else ''}")
    if not options.name:
        print("fetch with: conceptors data NAME")
    return 0


def _tune(options: argparse.Namespace) -> int:
    line = ProgressLine(options.quiet)
    failures: dict[str, str] = {}
    best: dict[str, Any] | None
    try:
        best = _search(options, line)
    except TrialsError as error:
        best, failures = error.best, error.failures
    line.end()
    if best is not None:
        print("\nbest on validation data:")
        print(f"  accuracy {best['value']:.2f} %")
        for name, value in best["params"].items():
            shown = f"{value:g}" if isinstance(value, float) else value
            print(f"  --set {name}={shown}")
    return tell_failures(failures)


def _search(options: argparse.Namespace, line: ProgressLine) -> dict[str, Any]:
    from conceptors.experiments.grid import search
    from conceptors.experiments.tune import tune

    folder = Path(options.out)
    experiment, engine = _experiment(options), chosen_engine(options, folder)
    if options.grid:
        if options.minutes is not None or options.at_once is not None:
            raise ExperimentError("--grid tries everything; leave --minutes and --at-once out")
        return search(experiment, folder, choices=options.vary, progress=line.show, engine=engine)
    return tune(
        experiment,
        folder,
        spaces=options.vary,
        trials=options.trials,
        minutes=options.minutes,
        progress=line.show,
        engine=engine,
        at_once=options.at_once or (1 if options.engine == "local" else _AT_ONCE),
    )


def _bench(options: argparse.Namespace) -> int:
    from conceptors.bench import BENCHMARKS, choose, find_device, run_suite

    if options.list:
        for name, benchmark in BENCHMARKS.items():
            print(f"  {name:<18} {benchmark.about}")
        return 0
    device = find_device(options.device)
    choose(options.name, device)
    outcome = run_suite(
        options.name,
        options.size,
        device,
        folder=None if options.out is None else Path(options.out),
        command=options.command_line,
        progress=lambda text: print(text, file=sys.stderr, flush=True),
    )
    print(outcome.text())
    return 1 if outcome.failed else 0


# --- helpers -----------------------------------------------------------------------------


def tell_failures(failures: dict[str, str]) -> int:
    """What failed, with its traceback, and how to go on; the exit code."""
    for name, why in failures.items():
        print(f"failed: {name}\n{why.rstrip()}", file=sys.stderr)
    if failures:
        print(
            f"{len(failures)} failed; the rest is done, and the same command tries them again",
            file=sys.stderr,
        )
    return 1 if failures else 0


def table(results: Results) -> str:
    """The summary as text."""
    head = f"{'method':<18}{'accuracy':>16}{'seeds':>7}{'forgetting':>12}{'seconds':>9}"
    stored = any("stored_numbers" in row for row in results.summary.values())
    head += f"{'numbers':>13}" if stored else ""
    lines = [head + ("  known" if results.reference else ""), "-" * len(head)]
    for name, row in results.summary.items():
        accuracy = f"{row['mean']:.2f}" + (f" ± {row['std']:.2f}" if row["n"] > 1 else "")
        forgetting = "-" if row["forgetting"] is None else f"{row['forgetting']:.2f}"
        line = f"{name:<18}{accuracy:>16}{row['n']:>7}{forgetting:>12}{row['seconds']:>9.1f}"
        if stored:
            kept = row.get("stored_numbers")
            line += f"{'-' if kept is None else format(kept, ','):>13}"
        if known := results.reference.get(name):
            spread = f" ± {known['std']:.2f}" if known.get("std") is not None else ""
            line += f"  {known['mean']:.2f}{spread} ({known['source']})"
        lines.append(line)
    return "\n".join(lines)


def _tensorboard(folder: str | None) -> Any:
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError(
            "TensorBoard logging needs tensorboard: pip install 'conceptors[tensorboard]'"
        ) from None
    writers: dict[str, Any] = {}

    def log(method: str, seed: int, number: int, row: list[float]) -> None:
        key = f"{method}/seed{seed}"
        if key not in writers:
            writers[key] = SummaryWriter(str(Path(folder) / key))
        seen = row[: number + 1]
        writers[key].add_scalar("accuracy/seen tasks", sum(seen) / len(seen), number + 1)
        for task, value in enumerate(seen):
            writers[key].add_scalar(f"accuracy/task {task + 1}", value, number + 1)
        writers[key].flush()

    return log


def _experiment(options: argparse.Namespace) -> Experiment:
    if options.preset in RENAMED:
        print(
            f"note: the preset {options.preset!r} is now called {current_name(options.preset)!r}",
            file=sys.stderr,
        )
    settings: dict[str, dict[str, Any]] = {}
    for text in options.set or []:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ExperimentError(f"--set takes NAME=VALUE or METHOD.NAME=VALUE, got {text!r}")
        method, dot, rest = name.rpartition(".")
        if dot and method not in METHODS:
            raise ExperimentError(
                f"--set {text}: unknown method {method!r}{nearest(method, METHODS)}"
            )
        settings.setdefault(method if dot else "*", {})[rest] = value
    names = ("tasks", "limit", "heads", "layers", "degrees", "shuffled", "standardised")
    chosen = {name: getattr(options, name) for name in names}
    scenario_options = {name: value for name, value in chosen.items() if value is not None}
    if options.class_order != "fixed":
        scenario_options["class_order"] = options.class_order
    experiment = Experiment(
        scenario=options.scenario,
        methods=list(dict.fromkeys(options.method)),
        seeds=list(range(options.first_seed, options.first_seed + options.seeds)),
        preset=current_name(options.preset),
        options=scenario_options,
        settings=settings,
        device=options.device,
        stacked=options.stacked,
        command=options.command_line,
    )
    varied = {text.partition("=")[0] for text in getattr(options, "vary", [])}
    _refuse_ineffective(experiment, varied)
    return experiment


def _refuse_ineffective(experiment: Experiment, varied: set[str]) -> None:
    """ExperimentError for a setting that is given or varied, but that another one overrides."""
    experiment.check_request()
    for method in experiment.methods:
        config, given = experiment.config(method), experiment.settings
        for name in sorted({*given.get("*", {}), *given.get(method, {}), *varied} & set(config)):
            other, overrides_when_on = INEFFECTIVE.get(name, ("", True))
            if other in set(config) - varied and bool(config[other]) == overrides_when_on:
                raise ExperimentError(
                    f"{name} has no effect on method {method!r} because {other} is "
                    f"{config[other]}. Results would not reflect the value that you asked for. "
                    f"Leave {name} out, or add --set {other}={0 if overrides_when_on else 'VALUE'}."
                )


_ACTIONS = {
    "run": _run,
    "all": act_on_all,
    "tune": _tune,
    "report": _report,
    "explore": _explore,
    "list": _list,
    "data": _data,
    "bench": _bench,
}
