"""What a run reports while it is at work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Event:
    """Steps of a task, a whole task, or a trial of tuning is done. Numbers count from 1.

    >>> print(Event("task", "98.1 % on this task", "cab", 0, 2, 2))
    cab, seed 0, task 2 of 2: 98.1 % on this task
    """

    kind: Literal["step", "task", "trial"]
    text: str  # the result so far
    method: str = ""
    seed: int = 0
    task: int = 0
    tasks: int = 0

    def __str__(self) -> str:
        if self.kind == "trial":
            return self.text
        return f"{self.method}, seed {self.seed}, task {self.task} of {self.tasks}: {self.text}"


Progress = Callable[[Event], None]


def quiet(event: Event) -> None:
    """Ignore an event."""
