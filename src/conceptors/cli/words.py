"""The words of the command line and their help; loads nothing heavy."""

from __future__ import annotations

import argparse

from conceptors import __version__

_EXAMPLES = """
examples:
  conceptors run disjoint-mnist --method sgd --method cab --preset paper --out out/disjoint
  conceptors run permuted-mnist --method cab --seeds 10 --device cuda --preset paper --out out/p
  conceptors run disjoint-mnist --method cab --set cab.aperture=4 --set epochs=5 --out out/try
  conceptors run permuted-mnist --method cab --seeds 10 --engine ray --out out/many
  conceptors list --method cab
  conceptors report out/disjoint
  conceptors explore --open
"""

_OWN_METHOD = """
a method of your own is a Python file like this own.py:
  from conceptors.methods import Learner, add

  @add
  class Slow(Learner):
      name = "slow"
      about = "learns later tasks slowly"

      def gradients(self, number):  # number: of the task, from 0
          for parameter in self.model.parameters():
              if number and parameter.grad is not None:
                  parameter.grad *= 0.01

and joins with
  conceptors run disjoint-mnist --import own.py --method sgd --method slow --out out/own
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

_ALL_EXAMPLES = """
examples:
  conceptors all --list                                    what would be run
  conceptors all --check                                   all of it at tiny sizes, in minutes
  conceptors all --device cuda                             everything that is not done yet
  conceptors all --rows disjoint-mnist-2 --methods sgd cab --seeds 3 --out out/few
  conceptors all --steps --device cuda                     times of training steps, alone there
  conceptors all --page                                    the page, from the results
  conceptors all --published --device cuda                 relatives held to their papers

Each benchmark has its folder with results.json. Killed and started again it resumes; what failed
is told at the end, and tried again next time (seeds that diverged only with --retry). The exit code
is 1 if something failed.
"""


def parser() -> argparse.ArgumentParser:
    """All commands; the one that is given comes as `command`, None without one."""
    made = argparse.ArgumentParser(
        prog="conceptors",
        description="Networks that learn one task after another without forgetting.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"conceptors {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    command = commands.add_parser(
        "run",
        help="run methods on a scenario, several seeds",
        description="Run methods on a scenario. Started again with the same words it resumes "
        "where it stopped.",
        epilog=_EXAMPLES + _OWN_METHOD,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _experiment_words(command)
    command.add_argument("--tensorboard", metavar="DIR", help="also log accuracies there")
    _retry_word(command)

    command = commands.add_parser("tune", help="choose settings on validation data")
    _experiment_words(command)
    command.add_argument(
        "--vary",
        action="append",
        required=True,
        metavar="NAME=LOW:HIGH[:log]",
        help="a setting and its range (or NAME=a,b,c for choices); may be given several times",
    )
    command.add_argument(
        "--grid",
        action="store_true",
        help="try all combinations of NAME=a,b,c instead of a search; needs no optuna",
    )
    command.add_argument("--trials", type=_positive, default=30, help="at most so many trials")
    command.add_argument("--minutes", type=float, default=None, help="at most so long")
    command.add_argument(
        "--at-once",
        type=_positive,
        metavar="N",
        help="trials that a search asks for at once (default: 1, on other machines 8)",
    )

    _all_words(
        commands.add_parser(
            "all",
            help="every method on every benchmark of the comparison, and its page",
            description="Run every method on every benchmark, with the settings of --preset best.",
            epilog=_ALL_EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )

    command = commands.add_parser("report", help="make a page and figures from results")
    command.add_argument(
        "folder", nargs="+", help="with results.json, or that file; several are also compared"
    )

    command = commands.add_parser(
        "explore",
        help="make a page on which to move the aperture",
        description="Make one HTML file that works offline: move the aperture and see spectra, "
        "quotas and projected digits of classes, their NOT, OR and AND; or layers of a shield.",
    )
    command.add_argument(
        "--shield", metavar="FILE", help="a file that shield.save wrote: show its layers instead"
    )
    command.add_argument(
        "--out", metavar="FILE", default="explore.html", help="the page (default: explore.html)"
    )
    command.add_argument("--open", action="store_true", help="open it in the browser")

    command = commands.add_parser("list", help="scenarios, methods, presets and settings")
    command.add_argument("--method", help="explain the settings of this method")
    _import_word(command)

    command = commands.add_parser("data", help="what data is here, and where; fetch more")
    command.add_argument("name", nargs="*", help="data sets to fetch")

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
    return made


def _experiment_words(command: argparse.ArgumentParser) -> None:
    command.add_argument("scenario", help="see: conceptors list")
    command.add_argument(
        "--method", action="append", required=True, help="may be given several times"
    )
    _import_word(command)
    command.add_argument("--seeds", type=_positive, default=1, help="how many (default 1)")
    command.add_argument("--first-seed", type=int, default=0, help="the first of them (default 0)")
    command.add_argument("--out", required=True, metavar="DIR", help="folder for the results")
    command.add_argument(
        "--preset",
        help="settings: paper (the paper's), best (tuned), or those of a benchmark by its name",
    )
    command.add_argument(
        "--set",
        action="append",
        metavar="[METHOD.]NAME=VALUE",
        help="a setting; several times; see: conceptors list --method NAME",
    )
    command.add_argument("--tasks", type=int, help="number of tasks")
    command.add_argument(
        "--class-order", choices=("fixed", "seed"), default="fixed", help="order of the classes"
    )
    heads = command.add_mutually_exclusive_group()
    heads.add_argument("--heads", action="store_true", default=None, help="one head per task")
    heads.add_argument("--single-head", dest="heads", action="store_false", help="one head")
    command.add_argument("--limit", type=_positive, help="use only so many samples (quick trials)")
    command.add_argument(
        "--layers", choices=("all", "last"), help="of the encoder that inputs come from (clinc150)"
    )
    command.add_argument(
        "--standardised",
        action="store_true",
        default=None,
        help="pixels of mean 0 and variance 1 (disjoint and permuted)",
    )
    command.add_argument(
        "--degrees", type=float, help="from each task to the next (rotated; default: 180 in all)"
    )
    command.add_argument(
        "--shuffled",
        type=float,
        metavar="SHARE",
        help="share of the pixels that a task shuffles (permuted; default: 1)",
    )
    _machine_words(command)


def _machine_words(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1 or auto (default: a GPU, if there)"
    )
    command.add_argument(
        "--stacked",
        type=int,
        default=0,
        metavar="N",
        help="seeds learned at once as one stacked network (default: all on a GPU, else 1)",
    )
    command.add_argument("--quiet", action="store_true", help="no progress")
    _engine_words(command.add_argument_group("many machines"))


def _engine_words(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--engine",
        choices=("local", "ray", "slurm"),
        default="local",
        help="where to run: in this process (default), on Ray, or on Slurm",
    )
    group.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of a Ray cluster (default: RAY_ADDRESS, or a Ray started on this machine)",
    )
    group.add_argument(
        "--cpus-per-run", type=_positive, metavar="N", help="with ray or slurm (default 1)"
    )
    group.add_argument(
        "--gpus-per-run",
        type=float,
        metavar="N",
        help="the same; Ray takes parts of one too (default 0; 1 with --device cuda)",
    )
    group.add_argument(
        "--slurm",
        action="append",
        metavar="NAME=VALUE",
        help="an option of sbatch, as partition=gpu or time=600 (minutes); several times",
    )
    group.add_argument(
        "--runs-per-job",
        type=_positive,
        metavar="N",
        help="runs that one job of Slurm does in turn (default 1)",
    )


def _all_words(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--rows", nargs="+", default=[], metavar="NAME", help="benchmarks (default: all)"
    )
    command.add_argument(
        "--published",
        action="store_true",
        help="instead: each relative as its own paper ran it, held to the figure published there",
    )
    command.add_argument(
        "--methods", nargs="+", default=[], metavar="NAME", help="(default: all that apply)"
    )
    _import_word(command)
    command.add_argument(
        "--seeds",
        type=_positive,
        help="how many (default: 10; on CIFAR-100 and with --published 5; with --check 1)",
    )
    command.add_argument(
        "--out",
        metavar="DIR",
        help="folder of the results (default: results/comparison, or results/published)",
    )
    does = command.add_mutually_exclusive_group()
    does.add_argument("--list", action="store_true", help="show what there is to run, and stop")
    does.add_argument(
        "--check",
        action="store_true",
        help="run at tiny sizes to see that all works; nothing is kept without --out",
    )
    does.add_argument(
        "--steps",
        action="store_true",
        help="only time a training step of every method, in turns, beside plain SGD's",
    )
    does.add_argument(
        "--page",
        nargs="?",
        const="docs/comparison.md",
        metavar="FILE",
        help="make the page from the results instead (default: docs/comparison.md)",
    )
    command.add_argument(
        "--shared",
        action="store_true",
        help="other work runs on the machine meanwhile: times are not shown on the page",
    )
    _retry_word(command)
    _machine_words(command)


def _retry_word(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--retry",
        action="store_true",
        help="try again what diverged with these settings",
    )


def _import_word(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file with methods of your own, made known by conceptors.methods.add",
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
