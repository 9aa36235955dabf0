"""What a run tells while it is at work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Event:
    """Some steps, a whole task, or a trial of tuning is done; numbers count from 1.

    >>> print(Event("task", "cab", (0,), 2, 2, accuracy=98.1, accuracy_so_far=49.0))
    cab seed 0 task 2/2: this task 98.1 %, all so far 49.0 %
    """

    kind: Literal["step", "task", "trial"]
    method: str
    seeds: tuple[int, ...]
    task: int = 0
    tasks: int = 0
    step: int = 0  # of a task; the number of a trial
    steps: int = 0
    validation: float | None = None  # accuracy in percent, mean over seeds
    accuracy: float | None = None  # on the task's test samples
    accuracy_so_far: float | None = None  # mean over the tasks learned so far
    done: float = 0.0  # tasks of this command, of all methods and seeds
    planned: int = 0
    settings: str = ""  # of a trial
    rows: tuple[list[float], ...] = ()  # test accuracy of each seed on each task

    @property
    def share(self) -> float:
        """Which part of the command's work is done."""
        return self.done / self.planned if self.planned else 0.0

    def __str__(self) -> str:
        if self.kind == "trial":
            score = f"trial {self.step}/{self.steps}: validation {self.validation:.2f} %"
            return f"{score} with {self.settings}"
        where = f"{self.method} {name_seeds(self.seeds)} task {self.task}/{self.tasks}"
        if self.kind == "task":
            return (
                f"{where}: this task {self.accuracy:.1f} %, all so far {self.accuracy_so_far:.1f} %"
            )
        return f"{where}: step {self.step}/{self.steps}, validation {self.validation:.2f} %"


Progress = Callable[[Event], None]


def quiet(event: Event) -> None:
    """Progress that nobody looks at."""


def name_seeds(seeds: tuple[int, ...]) -> str:
    """Seeds in words.

    >>> name_seeds((0, 1, 2))
    'seeds 0-2'
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if len(seeds) > 2 and seeds == tuple(range(seeds[0], seeds[0] + len(seeds))):
        return f"seeds {seeds[0]}-{seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"
