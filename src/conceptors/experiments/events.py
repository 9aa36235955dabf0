"""What a run reports while it is at work."""

from collections.abc import Callable
from typing import NamedTuple


class Event(NamedTuple):
    """What was done, in words: a task or a trial, or else some steps of a task."""

    text: str
    is_step: bool = False


Progress = Callable[[Event], None]


def quiet(event: Event) -> None:
    """Ignore an event."""
