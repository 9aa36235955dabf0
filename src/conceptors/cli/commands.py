"""The commands."""

import argparse
import shlex
import sys
import webbrowser
from pathlib import Path
from typing import Any

from conceptors._internal.checks import nearest
from conceptors.cli.progress import ProgressLine
from conceptors.experiments.engines import Engine, Local, Ray
from conceptors.experiments.experiment import Experiment, presets
from conceptors.experiments.methods import METHODS, import_methods
from conceptors.experiments.methods.settings import explain_settings
from conceptors.experiments.runner import UnfinishedError, run
from conceptors.experiments.scenarios.data.files import (
    CATALOGUE,
    DataUnavailableError,
    cache_folder,
    fetch,
    where,
)
from conceptors.experiments.scenarios.images import SCENARIOS


def act(options: argparse.Namespace) -> int:
    """Run a command; return 0 if all went well, 2 for a request that must be changed."""
    try:
        for file in getattr(options, "imports", []):
            import_methods(file)
        return _ACTIONS[options.command](options)
    except BrokenPipeError:
        raise  # the reader of the output is gone; nothing is wrong with the request
    except (DataUnavailableError, ValueError, ImportError, OSError) as error:
        print(f"conceptors: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    experiment, engine, folder = _experiment(options), _engine(options), Path(options.out)
    experiment.check()
    line, failure = ProgressLine(options.quiet), None
    try:
        results = run(experiment, folder, progress=line.show, engine=engine)
    except UnfinishedError as error:
        results, failure = error.results, error
    line.end()
    if results["runs"]:
        print(_table(results))
        print(f"\nresults: {folder / 'results.json'}")
        print(f"page:    conceptors report {shlex.quote(str(folder))}")
    if failure is not None:
        print(
            f"{failure}\nThe table leaves these seeds out. If they diverged, set a lower rate and "
            f"another --out; otherwise run the command again.",
            file=sys.stderr,
        )
    return int(failure is not None)


def _tune(options: argparse.Namespace) -> int:
    from conceptors.experiments.tune import tune

    line = ProgressLine(options.quiet)
    best = tune(
        _experiment(options),
        Path(options.out),
        spaces=options.vary,
        trials=options.trials,
        progress=line.show,
    )
    line.end()
    print(f"\nbest on validation data:\n  accuracy {best['value']:.2f} %")
    for name, value in best["params"].items():
        print(f"  --set {name}={f'{value:g}' if isinstance(value, float) else value}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from conceptors import report

    report.need_charts()
    paths = [Path(path) for path in options.folder]
    folders = [path.parent if path.name == "results.json" else path for path in paths]
    for folder in folders:
        if not (folder / "results.json").is_file():
            raise ValueError(
                f"no results.json in {str(folder)!r}; create it with: conceptors run SCENARIO "
                f"--method METHOD --out DIR"
            )
    read = [report.read_results(folder / "results.json") for folder in folders]
    for folder, results in zip(folders, read):
        figures = report.write_figures(results, folder / "figures")
        print(f"page: {report.write_page(results, folder / 'index.html')}")
        print(f"{len(figures)} figures in {folder / 'figures'}")
    return 0


def _explore(options: argparse.Namespace) -> int:
    from conceptors.report import write_explorer

    if options.shield is not None and not Path(options.shield).is_file():
        raise ValueError(
            f"there is no file {str(options.shield)!r}; shield.save(FILE) writes one, after a task "
            f"is remembered"
        )
    page = write_explorer(options.out, options.shield)
    print(f"page: {page}")
    if options.open and not webbrowser.open(page.resolve().as_uri()):
        print("this machine has no browser; open the page in one", file=sys.stderr)
    return 0


def _list(options: argparse.Namespace) -> int:
    if options.method:
        _check_method(options.method)
        method = METHODS[options.method]
        print(f"{options.method}: {method.about}\n\nsettings (--set {options.method}.NAME=VALUE)")
        print("\n".join(f"  {line}" for line in explain_settings(method.settings_type)))
        return 0
    scenarios = {name: f"{kind.tasks:>3} tasks  {kind.about}" for name, kind in SCENARIOS.items()}
    methods = {name: method.about for name, method in METHODS.items()}
    tuned = f"tuned settings, or by name: {', '.join(presets('best'))}"
    named = {"paper": f"for {', '.join(presets('paper'))}", "best": tuned}
    for title, entries in {"scenarios": scenarios, "methods": methods, "presets": named}.items():
        print("\n".join([title, *(f"  {name:<18} {about}" for name, about in entries.items()), ""]))
    print("settings of a method: conceptors list --method NAME")
    return 0


def _data(options: argparse.Namespace) -> int:
    for name in options.name:
        fetch(name)
    print(f"cache: {cache_folder()}")
    for name in CATALOGUE:
        files = where(name)
        here = [str(path.parent) for path in files.values() if path]
        state = "here" if len(here) == len(files) else f"{len(here)} of {len(files)} files here"
        print(f"  {name:<14} {state}{': ' if here else ''}{', '.join(dict.fromkeys(here))}")
    if not options.name:
        print("download: conceptors data NAME")
    return 0


def _table(results: dict[str, Any]) -> str:
    """The summary as text, and what its columns mean; `published` are values from papers."""
    reference = results.get("reference") or {}
    head = f"{'method':<18}{'accuracy':>16}{'seeds':>7}{'forgetting':>12}{'seconds':>9}"
    lines = [head + ("  published" if reference else ""), "-" * len(head)]
    for name, row in results["summary"].items():
        accuracy = f"{row['mean']:.2f}" + (f" ± {row['std']:.2f}" if row["n"] > 1 else "")
        forgetting = "-" if row["forgetting"] is None else f"{row['forgetting']:.2f}"
        line = f"{name:<18}{accuracy:>16}{row['n']:>7}{forgetting:>12}{row['seconds']:>9.1f}"
        if known := reference.get(name):
            spread = f" ± {known['std']:.2f}" if known.get("std") is not None else ""
            line += f"  {known['mean']:.2f}{spread} ({known['source']})"
        lines.append(line)
    lines.append("\naccuracy: percent correct on all tasks, after the last one")
    lines.append("forgetting: percentage points that earlier tasks lost since they were learned")
    return "\n".join(lines)


def _engine(options: argparse.Namespace) -> Engine:
    """The engine that is asked for; ValueError for options of another engine."""
    engines = {"address": "ray", "cpus_per_run": "ray", "gpus_per_run": "ray", "jobs": "local"}
    for name, engine in engines.items():
        if getattr(options, name) is not None and options.engine != engine:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} needs --engine {engine}, got {options.engine}")
    imports = [str(Path(file).expanduser().resolve()) for file in options.imports]
    if options.engine == "local":
        return Local(options.jobs or 1, imports)
    gpus = options.gpus_per_run
    if gpus is None:
        gpus = 1 if options.device.startswith("cuda") else 0
    return Ray(options.cpus_per_run or 1, gpus, options.address or "", imports)


def _check_method(name: str) -> None:
    if name not in METHODS:
        hint = "load your own with --import FILE.py"
        raise ValueError(f"unknown method {name!r}{nearest(name, METHODS)}; {hint}")


def _experiment(options: argparse.Namespace) -> Experiment:
    settings: dict[str, dict[str, Any]] = {}
    for method in options.method:
        _check_method(method)
    for text in options.set:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"--set takes NAME=VALUE or METHOD.NAME=VALUE, got {text!r}")
        method, _, name = name.rpartition(".")
        if method in set(METHODS) - set(options.method):
            raise ValueError(f"--set {text}: {method} is not among the methods of this run")
        settings.setdefault(method or "*", {})[name] = value
    chosen = {
        name: getattr(options, name)
        for name in ("tasks", "heads", "limit")
        if getattr(options, name) is not None
    }
    return Experiment(
        scenario=options.scenario,
        methods=list(dict.fromkeys(options.method)),
        seeds=list(range(options.first_seed, options.first_seed + options.seeds)),
        preset=options.preset,
        options=chosen,
        settings=settings,
        device=options.device,
        command=options.command_line,
    )


_ACTIONS = {
    "run": _run,
    "tune": _tune,
    "report": _report,
    "explore": _explore,
    "list": _list,
    "data": _data,
}
