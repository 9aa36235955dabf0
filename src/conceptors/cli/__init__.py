"""The command line: run, report, explore, tune, list and data."""

import os
import shlex
import sys
from collections.abc import Sequence

_CUT_SHORT = 141  # what a shell shows for a program that a closed pipe has ended: 128 + SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if all went well, 2 for a request that must be changed.

    130 after Ctrl-C, 141 if the reader of the output is gone, as `head` is.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            return _main(given)
        finally:
            sys.stdout.flush()  # a failure here would otherwise come when Python ends
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):  # discard the rest
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return _CUT_SHORT
    except KeyboardInterrupt:
        hint = "; finished seeds are kept, and the same command resumes"
        print(f"\nstopped{hint if given[:1] in (['run'], ['tune']) else ''}", file=sys.stderr)
        return 130


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
