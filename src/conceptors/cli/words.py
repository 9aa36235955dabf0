"""The words of the command line and their help; loads nothing heavy."""

from __future__ import annotations

import argparse
from functools import partial

from conceptors import __version__

_EXAMPLES = """
examples:
  conceptors run disjoint-mnist --method sgd --method cab --preset paper --out out/disjoint
  conceptors run permuted-mnist --method cab --seeds 10 --jobs 4 --preset paper --out out/p
  conceptors run disjoint-mnist --method cab --set cab.aperture=4 --set epochs=5 --out out/try
  conceptors run permuted-mnist --method cab --seeds 10 --engine ray --out out/many
  conceptors run disjoint-mnist --import own.py --method sgd --method own --out out/own
  conceptors list --method cab
  conceptors report out/disjoint
  conceptors explore --open
"""


def parser() -> argparse.ArgumentParser:
    """All commands; the one that is given comes as `command`, None without one."""
    plain = argparse.RawDescriptionHelpFormatter
    words = argparse.ArgumentParser(
        prog="conceptors",
        description="Networks that learn one task after another without forgetting.",
        epilog=_EXAMPLES,
        formatter_class=plain,
    )
    words.add_argument("--version", action="version", version=f"conceptors {__version__}")
    commands = words.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    add = partial(commands.add_parser, formatter_class=plain)

    _experiment_words(
        add(
            "run",
            help="run methods on a scenario, several seeds",
            description="Run methods on a scenario. The same command resumes a run that stopped.",
            epilog=_EXAMPLES,
        )
    )
    command = add("tune", help="choose settings on validation data")
    _experiment_words(command)
    command.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="NAME=LOW:HIGH[:log]",
        help="a setting and its range, or NAME=a,b,c for choices; may be given several times",
    )
    command.add_argument("--trials", type=_positive, default=30, help="at most so many trials")
    command.add_argument("--minutes", type=float, help="at most so long")

    command = add("report", help="make a page and figures from results")
    command.add_argument(
        "folder", nargs="+", help="with results.json, or that file; several make a page each"
    )
    about = "make a page, which works offline, on which to move the aperture of conceptors"
    command = add("explore", help=about, description=about)
    command.add_argument(
        "--shield", metavar="FILE", help="a file that shield.save wrote: show its layers instead"
    )
    command.add_argument(
        "--out", metavar="FILE", default="explore.html", help="the page (default: explore.html)"
    )
    command.add_argument("--open", action="store_true", help="open it in the browser")

    command = add("list", help="scenarios, methods, presets and settings")
    command.add_argument("--method", help="explain the settings of this method")
    _import_word(command)
    command = add("data", help="what data is here, and where; fetch more")
    command.add_argument("name", nargs="*", help="data sets to fetch")
    return words


def _experiment_words(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("scenario", help="see: conceptors list")
    add("--method", action="append", required=True, help="may be given several times")
    _import_word(command)
    add("--seeds", type=_positive, default=1, help="how many (default 1)")
    add("--first-seed", type=int, default=0, help="the first of them (default 0)")
    add("--out", required=True, metavar="DIR", help="folder for the results")
    add("--preset", help="paper (the paper's settings), best (tuned), or a benchmark's name")
    add(
        "--set",
        action="append",
        default=[],
        metavar="[METHOD.]NAME=VALUE",
        help="a setting; several times; see: conceptors list --method NAME",
    )
    add("--tasks", type=int, help="number of tasks")
    add("--class-order", choices=("fixed", "seed"), help="order of the classes (default fixed)")
    heads = command.add_mutually_exclusive_group()
    heads.add_argument("--heads", action="store_true", default=None, help="one head per task")
    heads.add_argument("--single-head", dest="heads", action="store_false", help="one head")
    add("--limit", type=_positive, help="use only so many samples (quick trials)")
    add("--layers", choices=("all", "last"), help="of the encoder that inputs come from (clinc150)")
    add("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default: a GPU, if there)")
    add("--jobs", type=_positive, metavar="N", help="seeds that run at once, each in a process")
    add("--quiet", action="store_true", help="no progress")
    add = command.add_argument_group("many machines").add_argument
    add("--engine", choices=("local", "ray"), default="local", help="where to run (default: here)")
    add(
        "--address",
        metavar="HOST:PORT",
        help="of a Ray cluster (default: RAY_ADDRESS, or a Ray started on this machine)",
    )
    add("--cpus-per-run", type=_positive, metavar="N", help="with ray (default 1)")
    add(
        "--gpus-per-run",
        type=float,
        metavar="N",
        help="with ray, may be a part of one (default 0; 1 with --device cuda)",
    )


def _import_word(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file with your own methods, see conceptors.methods.add",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
