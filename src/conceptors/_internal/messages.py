"""Parts of messages: names that were probably meant, and the line of user code to blame."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from difflib import get_close_matches

_MOST = 30  # names that are listed
_OURS = ("conceptors.", "torch.", "contextlib")


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` and the possible names, to end an error message.

    >>> nearest("disjoint-mist", ["disjoint-mnist", "permuted-mnist"])
    "; did you mean 'disjoint-mnist'? there are: disjoint-mnist, permuted-mnist"
    """
    names = sorted(known)
    close = get_close_matches(str(name), names, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in close)}? " if close else ""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"; {hint}there are: {', '.join(names[:_MOST])}{more}"


def outside() -> int:
    """The `stacklevel` of the user's own code, beyond this package and torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return level
