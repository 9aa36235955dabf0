"""Joint training: all tasks so far at once, the ceiling."""

from __future__ import annotations

import torch
from torch import Tensor

from conceptors.experiments.methods.base import Learner, only
from conceptors.experiments.scenarios import Split, union


class Joint(Learner):
    """Trains on the union of all tasks so far; the last time for as many epochs as a task gets."""

    name = "joint"
    about = "training on all tasks so far at once, the ceiling"

    def training_split(self, number: int) -> Split:
        return union([task.train for task in self.scenario.tasks[: number + 1]])

    def own_head(self, outputs: Tensor, y: Tensor, number: int) -> Tensor:
        """Every sample uses the head of the task it comes from."""
        shown = torch.zeros_like(outputs, dtype=torch.bool)
        for k in range(number + 1):
            classes = self.head_classes(k)
            shown |= True if classes is None else classes[y, None] & classes
        return only(outputs, shown)

    def steps(self, number: int) -> int:
        is_last = number + 1 == len(self.scenario.tasks)
        return super().steps(number) * (number + 1 if is_last else 1)
