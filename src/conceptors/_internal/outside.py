"""Whose line a warning should point to."""

from __future__ import annotations

import sys

_OURS = ("conceptors.", "torch.", "contextlib")


def outside() -> int:
    """The `stacklevel` of the user's own code, beyond this package and torch."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame, level = frame.f_back, level + 1
    return level
