"""The command line: run experiments, compare, report, tune, list, fetch data, measure speed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if all went well, 2 for a request that must be changed, 130 for Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _main(given)
    except KeyboardInterrupt:
        resumes = bool({"run", "tune", "all"} & set(given[:1]))
        kept = "; what is finished is kept, the same command resumes" if resumes else ""
        print(f"\nstopped{kept}", file=sys.stderr)
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
