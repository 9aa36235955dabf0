"""What a run reports while it is at work, and how much of the work is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Event:
    """Steps of a task, a whole task, or a trial of tuning is done. Numbers count from 1.

    >>> print(Event("task", "cab", 0, 2, 2, "98.1 % on this task"))
    cab, seed 0, task 2 of 2: 98.1 % on this task
    """

    kind: Literal["step", "task", "trial"]
    method: str
    seed: int = 0
    task: int = 0
    tasks: int = 0
    text: str = ""  # the result so far
    step: int = 0
    steps: int = 0  # of the task, unless it ends early
    may_end_early: bool = False  # and it is not known yet after how many steps
    seconds: float = 0.0  # since the seed began
    share: float = 0.0  # of the command's work that is done

    def __str__(self) -> str:
        if self.kind == "trial":
            return self.text
        return f"{self.method}, seed {self.seed}, task {self.task} of {self.tasks}: {self.text}"


Progress = Callable[[Event], None]


def quiet(event: Event) -> None:
    """Ignore an event."""


class WorkDone:
    """Adds to every event the share of the command's work that is done, measured in seconds.

    A task under way counts by its steps. Where tasks end early, it is expected to take as many
    steps as the last finished one of the same method. A task of a method that has not begun counts
    as much as the average task.
    """

    def __init__(self, progress: Progress, methods: Sequence[str]) -> None:
        self._progress = progress
        self._seeds = Counter(methods)
        self._done: dict[tuple[str, int], float] = {}  # tasks of each seed
        self._latest: dict[tuple[str, int], int] = {}  # step
        self._expected: dict[str, int] = {}  # steps of a task, by method
        self._seconds: dict[str, float] = {}  # of a task, by method

    def __call__(self, event: Event) -> None:
        key, method = (event.method, event.seed), event.method
        if event.kind == "step":
            fraction = min(1.0, event.step / self._expected.get(method, event.steps))
            self._done[key], self._latest[key] = event.task - 1 + fraction, event.step
        else:
            self._done[key] = event.task
            self._expected[method] = self._latest.get(key, 1)
        self._seconds[method] = event.seconds / self._done[key]
        average = sum(self._seconds.values()) / len(self._seconds) or 1.0
        cost = {name: self._seconds.get(name) or average for name in self._seeds}
        total = sum(count * cost[name] for name, count in self._seeds.items()) * event.tasks
        share = sum(done * cost[name] for (name, _), done in self._done.items()) / total
        unknown = event.may_end_early and method not in self._expected
        self._progress(replace(event, share=min(1.0, share), may_end_early=unknown))
