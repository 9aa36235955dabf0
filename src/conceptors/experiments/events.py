"""What a run reports while it is at work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Event:
    """Some steps, a whole task, or a trial of tuning is done; numbers count from 1.

    >>> print(Event("task", "cab", 0, 2, 2, accuracy=98.1, accuracy_so_far=49.0))
    cab seed 0 task 2/2: this task 98.1 %, all so far 49.0 %
    """

    kind: Literal["step", "task", "trial"]
    method: str
    seed: int
    task: int = 0
    tasks: int = 0
    step: int = 0  # of a task; the number of a trial
    steps: int = 0
    validation: float | None = None  # accuracy in percent
    accuracy: float | None = None  # on the task's test samples
    accuracy_so_far: float | None = None  # over the test samples of all tasks learned so far
    share: float = 0.0  # of the command's work that is done
    settings: str = ""  # of a trial

    def __str__(self) -> str:
        if self.kind == "trial":
            score = f"trial {self.step}/{self.steps}: validation {self.validation:.2f} %"
            return f"{score} with {self.settings}"
        where = f"{self.method} seed {self.seed} task {self.task}/{self.tasks}"
        if self.kind == "task":
            return (
                f"{where}: this task {self.accuracy:.1f} %, all so far {self.accuracy_so_far:.1f} %"
            )
        return f"{where}: step {self.step}/{self.steps}, validation {self.validation:.2f} %"


Progress = Callable[[Event], None]


def quiet(event: Event) -> None:
    """Progress that nobody looks at."""
