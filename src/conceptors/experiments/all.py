"""`python -m conceptors.experiments.all ...` is `conceptors all ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    from conceptors.cli import main as command

    return command(["all", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
