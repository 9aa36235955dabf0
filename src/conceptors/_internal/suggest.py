"""Helping with names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MOST = 30  # names that are listed


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` and what there is, to end an error message.

    >>> nearest("disjoint-mist", ["disjoint-mnist", "permuted-mnist"])
    "; did you mean 'disjoint-mnist'? there are: disjoint-mnist, permuted-mnist"
    """
    names = sorted(known)
    close = get_close_matches(str(name), names, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in close)}? " if close else ""
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return f"; {hint}there are: {', '.join(names[:_MOST])}{more}"
