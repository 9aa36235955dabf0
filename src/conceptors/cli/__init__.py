"""The command line: run experiments, compare, report, tune, list, fetch data, measure speed."""

from __future__ import annotations

import os
import select
import shlex
import sys
from collections.abc import Sequence

_CUT_SHORT = 141  # what a shell shows for a program that a closed pipe has ended: 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all went well, 2 for a request that must be changed, 130 for Ctrl-C.

    141 if whoever reads the output has left, as `head` does.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _main(given)
        finally:
            sys.stdout.flush()  # what fails here would fail when Python ends, and be told
    except BrokenPipeError as error:
        if not hasattr(select, "poll") or not _nobody_reads():  # Windows has none
            print(f"conceptors: {error}", file=sys.stderr)
            return 2
        return _CUT_SHORT
    except KeyboardInterrupt:
        resumes = bool({"run", "tune", "all"} & set(given[:1]))
        kept = "; what is finished is kept, the same command resumes" if resumes else ""
        print(f"\nstopped{kept}", file=sys.stderr)
        return 130


def _nobody_reads() -> bool:
    """Whether an output has lost its reader; what is left to write is then thrown away."""
    found = False
    for stream in (sys.stdout, sys.stderr):
        asked = select.poll()
        asked.register(stream.fileno(), 0)
        if asked.poll(0):  # whatever is told without being asked for is an error
            found = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return found


def _main(given: list[str]) -> int:
    from conceptors.cli.words import parser

    words = parser()
    options = words.parse_args(given)
    if options.command is None:
        words.print_help()
        return 2
    options.command_line = "conceptors " + shlex.join(given)
    # Only now: torch takes seconds to load, and help needs none of it.
    from conceptors.cli.commands import act

    return act(options)
