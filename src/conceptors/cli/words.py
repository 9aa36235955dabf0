"""The commands, their options and their help; this module loads nothing heavy."""

import argparse
from functools import partial

from conceptors import __version__

_EXAMPLES = """
examples:
  conceptors run disjoint-mnist --method sgd --method cab --preset paper --out out/disjoint
  conceptors run disjoint-mnist --method cab --set cab.aperture=4 --set epochs=5 --out out/try
  conceptors run permuted-mnist --method cab --seeds 10 --jobs 4 --preset paper --out out/p
  conceptors run disjoint-mnist --import own.py --method sgd --method own --out out/own
  conceptors list --method cab
  conceptors report out/disjoint
  conceptors explore --open
"""


def parser() -> argparse.ArgumentParser:
    """Create the parser; `command` is the given command, None without one."""
    plain = argparse.RawDescriptionHelpFormatter
    words = argparse.ArgumentParser(
        prog="conceptors",
        description="Train networks on one task after another without forgetting.",
        epilog=_EXAMPLES,
        formatter_class=plain,
    )
    words.add_argument("--version", action="version", version=f"conceptors {__version__}")
    commands = words.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    add = partial(commands.add_parser, formatter_class=plain)

    about = "Run methods on a scenario. The same command resumes a stopped run."
    command = add("run", help="run methods on a scenario", description=about, epilog=_EXAMPLES)
    _experiment_words(command)
    _engine_words(command)
    command = add("tune", help="choose settings of a method on validation data")
    _experiment_words(command)
    command.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="NAME=LOW:HIGH[:log]",
        help="a setting with its range, or NAME=a,b,c for choices; repeat for more settings",
    )
    command.add_argument("--trials", type=_positive, default=30, help="trials in all (default 30)")

    command = add("report", help="write a page and figures from results")
    command.add_argument("folder", nargs="+", help="folders with results.json; one page for each")
    about = "write an interactive page that shows how the aperture changes conceptors"
    command = add("explore", help=about, description=f"{about[0].upper()}{about[1:]}.")
    option = command.add_argument
    option("--shield", metavar="FILE", help="show the layers of a shield saved with shield.save")
    option("--out", metavar="FILE", default="explore.html", help="default: explore.html")
    option("--open", action="store_true", help="open the page in a browser")

    command = add("list", help="list scenarios, methods, presets and settings")
    command.add_argument("--method", help="explain the settings of this method")
    _import_word(command)
    about = "list the data sets and where they are stored, or download some"
    command = add("data", help=about, description=f"{about[0].upper()}{about[1:]}.")
    command.add_argument("name", nargs="*", help="data set to download; without names, only list")
    return words


def _experiment_words(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("scenario", help="sequence of tasks, see: conceptors list")
    add("--method", action="append", required=True, help="see: conceptors list; repeat for more")
    _import_word(command)
    add("--seeds", type=_positive, default=1, help="number of seeds (default 1)")
    add("--first-seed", type=int, default=0, help="first seed (default 0)")
    add("--out", required=True, metavar="DIR", help="folder for the results")
    add("--preset", help="paper (the paper's settings), best (tuned), or a benchmark's name")
    add(
        "--set",
        action="append",
        default=[],
        metavar="[METHOD.]NAME=VALUE",
        help="change a setting, see: conceptors list --method NAME; repeat for more",
    )
    add("--tasks", type=int, help="number of tasks")
    heads = command.add_mutually_exclusive_group()
    heads.add_argument("--heads", action="store_true", default=None, help="one head per task")
    heads.add_argument("--single-head", dest="heads", action="store_false", help="one head for all")
    add("--limit", type=_positive, metavar="N", help="use only N samples, for a quick trial")
    add("--device", default="auto", help="cpu, cuda, cuda:1 or auto (default: a GPU if available)")
    add("--quiet", action="store_true", help="show no progress")


def _engine_words(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--jobs", type=_positive, metavar="N", help="run N seeds at once, each in a process")
    add = command.add_argument_group("many machines").add_argument
    add("--engine", choices=("local", "ray"), default="local", help="where to run (default local)")
    add(
        "--address",
        metavar="HOST:PORT",
        help="address of a Ray cluster (default: RAY_ADDRESS, or a new Ray on this machine)",
    )
    add("--cpus-per-run", type=_positive, metavar="N", help="CPUs for each run on Ray (default 1)")
    add(
        "--gpus-per-run",
        type=float,
        metavar="N",
        help="GPUs for each run on Ray, also fractions (default 0; 1 with --device cuda)",
    )


def _import_word(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE.py",
        help="Python file with your own methods, see conceptors.methods.add",
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text}")
    return int(text)
