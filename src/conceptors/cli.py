"""The command line: run experiments, make reports, tune, list, fetch data, measure speed."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from conceptors import __version__
from conceptors._internal.suggest import nearest
from conceptors.experiments.methods import METHODS
from conceptors.experiments.presets import PRESETS
from conceptors.experiments.runner import Experiment, ExperimentError, run
from conceptors.experiments.scenarios import SCENARIOS
from conceptors.experiments.scenarios.data import (
    CATALOGUE,
    DataUnavailableError,
    cache_folder,
    fetch,
    locate,
)

_EXAMPLES = """
examples:
  conceptors run disjoint-mnist --method sgd --method cab --preset report --out out/disjoint
  conceptors run permuted-mnist --method cab --seeds 10 --device cuda --preset report --out out/p
  conceptors run disjoint-mnist --method cab --set cab.aperture=4 --set epochs=5 --out out/try
  conceptors report out/disjoint
"""

_BENCH_EXAMPLES = """
examples:
  conceptors bench --list                         what there is
  conceptors bench                                all that fits this machine, a few minutes
  conceptors bench step-mlp --size full           one of them, with more rounds
  conceptors bench --size full --out out/bench    writes cpu.json and cpu.md, or the GPU's name

Numbers of a busy machine are worth little: ratios are measured side by side and stand it better
than times. The exit code is 1 if a benchmark failed; a missed target is no failure.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all went well, 2 for a request that must be changed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(given)
    if not hasattr(options, "action"):
        parser.print_help()
        return 2
    options.command_line = "conceptors " + shlex.join(given)
    try:
        done: int = options.action(options)
    except (ExperimentError, DataUnavailableError, ValueError, ImportError) as error:
        print(f"conceptors: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"conceptors: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; finished seeds are kept, the same command goes on", file=sys.stderr)
        return 130
    return done


# --- commands ----------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    experiment = _experiment(options)
    folder = Path(options.out)
    line = _Line(options.quiet)
    log = _tensorboard(options.tensorboard)
    results = run(experiment, folder, progress=line.show, log=log)
    line.end()
    print(table(results))
    print(f"\nresults: {folder / 'results.json'}")
    print(f"page:    conceptors report {shlex.quote(str(folder))}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from conceptors.report import (
        need_charts,
        read_results,
        write_comparison,
        write_figures,
        write_page,
    )
    from conceptors.report.seen import pictures

    need_charts()
    folders = [Path(folder) for folder in options.folder]
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
    if len(folders) > 1:
        print(f"side by side: {write_comparison(folders, folders[0] / 'comparison.html')}")
    return 0


def _list(options: argparse.Namespace) -> int:
    print("scenarios")
    for name, kind in SCENARIOS.items():
        print(f"  {name:<18} {kind.tasks:>3} tasks  {kind.about}")
    print("\nmethods")
    for name, method in METHODS.items():
        print(f"  {name:<18} {method.about}")
    print("\npresets")
    for name, presets in PRESETS.items():
        print(f"  {name:<18} for {', '.join(presets)}")
    if options.method:
        if options.method not in METHODS:
            raise ValueError(f"unknown method {options.method!r}{nearest(options.method, METHODS)}")
        print(f"\nsettings of {options.method} (--set NAME=VALUE)")
        for entry in fields(METHODS[options.method].settings_type):
            print(f"  {entry.name:<18} {entry.default}")
    else:
        print("\nsettings of a method: conceptors list --method NAME")
    return 0


def _data(options: argparse.Namespace) -> int:
    for name in options.name or []:
        fetch(name)
    print(f"cache: {cache_folder()}")
    for name in CATALOGUE:
        files = locate(name)
        have = sum(path is not None for path in files.values())
        state = "here" if have == len(files) else f"{have} of {len(files)} files here"
        print(f"  {name:<14} {state}")
    if not options.name:
        print("fetch with: conceptors data NAME")
    return 0


def _tune(options: argparse.Namespace) -> int:
    from conceptors.experiments.tune import tune

    best = tune(
        _experiment(options),
        Path(options.out),
        spaces=options.vary,
        trials=options.trials,
        minutes=options.minutes,
        progress=_Line(options.quiet).show,
    )
    print("\nbest on validation data:")
    print(f"  accuracy {best['value']:.2f} %")
    for name, value in best["params"].items():
        print(
            f"  --set {name}={value:g}" if isinstance(value, float) else f"  --set {name}={value}"
        )
    return 0


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


def table(results: dict[str, Any]) -> str:
    """The summary as text."""
    reference = results.get("reference", {})
    head = f"{'method':<18}{'accuracy':>16}{'seeds':>7}{'forgetting':>12}{'seconds':>9}"
    lines = [head + ("  report" if reference else ""), "-" * len(head)]
    for name, row in results["summary"].items():
        accuracy = f"{row['mean']:.2f} ± {row['std']:.2f}"
        line = (
            f"{name:<18}{accuracy:>16}{row['n']:>7}{row['forgetting']:>12.2f}{row['seconds']:>9.1f}"
        )
        if name in reference:
            known = reference[name]
            spread = f" ± {known['std']:.2f}" if known.get("std") is not None else ""
            line += f"  {known['mean']:.2f}{spread} ({known['source']})"
        lines.append(line)
    return "\n".join(lines)


class _Line:
    """Progress on one line of a terminal, or a line a minute elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._last = ""

    def show(self, text: str) -> None:
        if self._quiet:
            return
        if self._live:
            print(f"\r\x1b[K{text[:150]}", end="", file=sys.stderr, flush=True)
        elif "mean test accuracy" in text:
            print(text, file=sys.stderr, flush=True)
        self._last = text

    def end(self) -> None:
        if self._live and self._last and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


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
    chosen = {"tasks": options.tasks, "limit": options.limit, "heads": options.heads}
    scenario_options = {name: value for name, value in chosen.items() if value is not None}
    if options.class_order != "fixed":
        scenario_options["class_order"] = options.class_order
    return Experiment(
        scenario=options.scenario,
        methods=list(dict.fromkeys(options.method)),
        seeds=list(range(options.first_seed, options.first_seed + options.seeds)),
        preset=options.preset,
        options=scenario_options,
        settings=settings,
        device=options.device,
        stacked=options.stacked,
        command=options.command_line,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="conceptors",
        description="Networks that learn one task after another without forgetting.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"conceptors {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    command = commands.add_parser(
        "run",
        help="run methods on a scenario, several seeds",
        description="Run methods on a scenario. Started again with the same words it goes on "
        "where it stopped.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _experiment_options(command)
    command.add_argument("--tensorboard", metavar="DIR", help="also log accuracies there")
    command.set_defaults(action=_run)

    command = commands.add_parser("tune", help="choose settings on validation data")
    _experiment_options(command)
    command.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="NAME=LOW:HIGH[:log]",
        help="a setting and its range (or NAME=a,b,c for choices); may be given several times",
    )
    command.add_argument("--trials", type=_positive, default=30, help="at most so many trials")
    command.add_argument("--minutes", type=float, default=None, help="at most so long")
    command.set_defaults(action=_tune)

    command = commands.add_parser("report", help="make a page and figures from results")
    command.add_argument(
        "folder", nargs="+", help="a folder with results.json; several are also compared"
    )
    command.set_defaults(action=_report)

    command = commands.add_parser("list", help="scenarios, methods, presets and settings")
    command.add_argument("--method", help="show all settings of this method")
    command.set_defaults(action=_list)

    command = commands.add_parser("data", help="what data is here; fetch more")
    command.add_argument("name", nargs="*", help="data sets to fetch")
    command.set_defaults(action=_data)

    command = commands.add_parser(
        "bench",
        help="what shielding costs on this machine",
        description="Measure shielded against plain training on this machine, beside the least "
        "time that the added work can take here. Every line of the table says what was aimed at.",
        epilog=_BENCH_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("name", nargs="*", metavar="NAME", help="benchmarks (default: all)")
    command.add_argument("--list", action="store_true", help="show their names and stop")
    command.add_argument(
        "--size",
        choices=("tiny", "quick", "full"),
        default="quick",
        help="tiny: only to see that all runs; quick: a few minutes (default); full: for tables",
    )
    command.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:1")
    command.add_argument("--out", metavar="DIR", help="write results there, after every benchmark")
    command.set_defaults(action=_bench)
    return parser


def _experiment_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("scenario", help="see: conceptors list")
    command.add_argument(
        "--method", action="append", required=True, help="may be given several times"
    )
    command.add_argument("--seeds", type=_positive, default=1, help="how many (default 1)")
    command.add_argument("--first-seed", type=int, default=0, help="the first of them (default 0)")
    command.add_argument("--out", required=True, metavar="DIR", help="folder for the results")
    command.add_argument("--preset", help="report (its settings) or best (tuned)")
    command.add_argument(
        "--set", action="append", metavar="[METHOD.]NAME=VALUE", help="a setting; several times"
    )
    command.add_argument("--tasks", type=int, help="number of tasks")
    command.add_argument(
        "--class-order", choices=("fixed", "seed"), default="fixed", help="order of the classes"
    )
    heads = command.add_mutually_exclusive_group()
    heads.add_argument("--heads", action="store_true", default=None, help="a head a task")
    heads.add_argument("--single-head", dest="heads", action="store_false", help="one head")
    command.add_argument("--limit", type=_positive, help="use only so many images (quick trials)")
    default = "cuda" if torch.cuda.is_available() else "cpu"
    command.add_argument("--device", default=default, help=f"cpu, cuda, cuda:1 (here {default})")
    command.add_argument(
        "--stacked",
        type=int,
        default=0,
        metavar="N",
        help="seeds learned at once as one stacked network (default: all on a GPU, else 1)",
    )
    command.add_argument("--quiet", action="store_true", help="no progress")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
