"""What a method is compared with: joint training, and a network for each task."""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from conceptors.experiments.methods.base import Learner, only
from conceptors.experiments.scenarios.base import Split, union


class Joint(Learner):
    """Trains on the union of all tasks so far; the last time for as many epochs as a task gets."""

    name = "joint"
    about = "training on all tasks so far at once, the ceiling"

    def training_split(self, number: int) -> Split:
        return union([task.train for task in self.scenario.tasks[: number + 1]])

    def trained_classes(self, number: int) -> None:
        """Not the same classes for all samples."""

    def loss(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Every sample uses the head of the task it comes from."""
        is_used = torch.zeros_like(outputs, dtype=torch.bool)
        for k in range(number + 1):
            classes = self.head_classes(k)
            is_used |= True if classes is None else classes[y, None] & classes
        return super().loss(only(outputs, is_used), y, number)

    def steps(self, number: int) -> int:
        is_last = number + 1 == len(self.scenario.tasks)
        return super().steps(number) * (number + 1 if is_last else 1)


class Separate(Learner):
    """Every task trains its own copy of the same new network; testing needs the task ID.

    A task that was not learned yet is tested with the network that was learned last.
    """

    name = "separate"
    about = "one network per task; needs the task ID at test time"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._initial = copy.deepcopy(self.model.state_dict())
        self._learned: dict[int, dict[str, Tensor]] = {}  # by task

    def start_task(self, number: int) -> None:
        self.model.load_state_dict(self._initial)

    def end_task(self, number: int) -> None:
        self._learned[number] = copy.deepcopy(self.model.state_dict())

    def outputs(self, x: Tensor, number: int) -> Tensor:
        out: Tensor = functional_call(self.model, self._learned.get(number, {}), (x,))
        return out
